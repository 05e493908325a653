"""A chat whose flow is paused, at the server."""

from typing import Any, Final

import pytest
from starlette.testclient import TestClient

from usechat import create_app
from usechat.flows import FlowRuntime, NodeContext
from usechat.transports import OpenHarnessChatTransport

FLOW: Final[dict[str, Any]] = {"name": "asks", "nodes": [{"id": "a", "type": "ask", "input": {}}], "edges": []}


async def ask(context: NodeContext, _value: dict[str, Any]) -> None:
    context.emit({"type": "agent:text", "content": context.resume_message or "May I?"})
    if context.resume_message is None:
        context.pause()


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (("POST", "/api/chat/c/stop"), "May I?"),
        (("DELETE", "/api/chat/c"), "May I?"),
        # That turn is over, and whoever stops it may not know what came after it.
        (("POST", "/api/chat/c/stop?turn=t"), "Go on."),
        (("POST", "/api/chat/d/stop"), "Go on."),
    ],
)
def test_a_stop_ends_the_run_that_is_paused(stop: tuple[str, str], said: str) -> None:
    def send(text: str, message_id: str) -> str:
        message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
        return http.post("/api/chat", json={"id": "c", "messages": [message]}).text

    with TestClient(create_app(OpenHarnessChatTransport(lambda: FlowRuntime(FLOW, {"ask": ask})))) as http:
        assert "May I?" in send("Hello", "u1")
        assert http.request(*stop).status_code == 204
        assert f'"{said}"' in send("Go on.", "u2")
