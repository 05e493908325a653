"""Google ADK with Gemini's wire."""

import os
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import Gemini
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.genai import Client
from google.genai.types import HttpOptions
from pydantic import BaseModel

from effects import boom, get_weather, pay, wait

__all__ = ["agent"]


class FakeGemini(Gemini):
    """Gemini at the fake provider."""

    @property
    def api_client(self) -> Client:
        return CLIENT


CLIENT = Client(api_key="none", vertexai=False, http_options=HttpOptions(base_url=os.environ["PROVIDER_URL"]))
MODEL = FakeGemini(model="gemini-fake")


class Question(BaseModel):
    question: str


def get_location() -> Any:
    """Ask the page where the user is."""
    return


helper = LlmAgent(name="helper", description="Helps.", model=MODEL, mode="single_turn", input_schema=Question)
expert = LlmAgent(name="expert", description="Knows more.", model=MODEL, instruction="You are the expert.")
agent = LlmAgent(
    name="main",
    model=MODEL,
    tools=[
        get_weather,
        boom,
        FunctionTool(pay, require_confirmation=True),
        LongRunningFunctionTool(get_location),
        wait,
    ],
    sub_agents=[helper, expert],
)
