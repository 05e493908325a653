"""AG-UI as Pydantic AI's own adapter speaks it: a witness that usechat did not write."""

import os
import socket
import threading

import uvicorn
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.ui.ag_ui import AGUIAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from effects import boom, get_weather, pay, wait
from usechat.integrations.ag_ui import AGUIAgent

__all__ = ["agent"]

model = OpenAIResponsesModel(
    "gpt-5", provider=OpenAIProvider(base_url=f"{os.environ['PROVIDER_URL']}/v1", api_key="none")
)
upstream = Agent(model, output_type=[str, DeferredToolRequests], tools=[get_weather, boom, wait], retries=0)
upstream.tool_plain(requires_approval=True)(pay)


async def _run(request: Request) -> Response:
    return await AGUIAdapter.dispatch_request(request, agent=upstream)


def _serve() -> str:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    app = Starlette(routes=[Route("/agent", _run, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/agent"


agent = AGUIAgent(
    _serve(), tools=[{"name": "get_location", "description": "Where the user is.", "parameters": {"type": "object"}}]
)
