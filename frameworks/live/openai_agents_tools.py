"""The agent of both models: its tools, a sub-agent, and another agent that it hands the conversation to."""

from dataclasses import dataclass
from typing import Any

from agents import Agent, Model, ModelSettings, function_tool, set_tracing_disabled
from effects import boom, get_weather, pay, wait
from usechat.integrations.openai_agents import show_subagent

__all__ = ["make_agent"]

# It would send every run to OpenAI.
set_tracing_disabled(True)


@dataclass
class Question:
    question: str


def asked(options: Any) -> str:
    return options["params"]["question"]


def make_agent(model: Model, settings: ModelSettings) -> Agent[None]:
    payment = function_tool(pay, needs_approval=True)
    helper = Agent[None](name="helper", model=model, model_settings=settings, tools=[payment])
    expert = Agent[None](name="expert", model=model, model_settings=settings, instructions="You are the expert.")
    return Agent[None](
        name="main",
        model=model,
        model_settings=settings,
        tools=[
            function_tool(get_weather),
            function_tool(boom),
            payment,
            function_tool(wait),
            helper.as_tool("helper", "Helps.", parameters=Question, input_builder=asked, on_stream=show_subagent),
        ],
        handoffs=[expert],
    )
