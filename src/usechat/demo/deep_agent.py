"""A graph of `create_deep_agent` with a scripted model: todos, files, a sub-agent, and a call that needs approval."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, TypeAlias

from langchain_core.messages import AIMessageChunk, BaseMessage

from usechat.demo.scripted_model import ScriptedModel, calls, says
from usechat.integrations.deepagent_sdk.events import NOISY
from usechat.integrations.deepagent_sdk.translator import DeepAgentOptions
from usechat.integrations.deepagents import DeepGraphAgent
from usechat.server.page import PageAgent, PagePrompt

__all__ = ["PAGE", "make_agent"]

_Reply: TypeAlias = Callable[[BaseMessage], list[AIMessageChunk]]
"""What the model says next, given the message before."""

# Their types are not complete enough for a strict checker.
_deepagents: Any = import_module("deepagents")
_checkpoints: Any = import_module("langgraph.checkpoint.memory")
_middleware: Any = import_module("langchain.agents.middleware")

_STEPS: Final = ("Find out the heights", "Write the report", "Read it once more")
_TASK: Final = "Find the heights of the tides in Brest"
_FOUND: Final = "High water in Brest is 7.1 m, low water 1.2 m."
_REPORT: Final = "# Tides in Brest\n\nHigh water: 7.1 m\nLow water: 1.2 m\n"


def make_agent(pace: float) -> DeepGraphAgent:
    """Make the graph. Its model writes one word every `pace` seconds, and threads are kept in memory."""
    graph = _deepagents.create_deep_agent(
        ScriptedModel(reply=_reply, pace=pace),
        [measure, publish],
        subagents=[
            {
                "name": "researcher",
                "description": "Finds figures.",
                "system_prompt": "You find figures.",
                "tools": [measure],
            }
        ],
        middleware=[_middleware.TodoListMiddleware()],
        interrupt_on={"publish": {"allowed_decisions": ["approve", "reject"]}},
        checkpointer=_checkpoints.InMemorySaver(),
    )
    # The user sees these while they happen, and the message does not keep them.
    transient = (*NOISY, "checkpoint-loaded", "checkpoint-saved", "file-write-start")
    return DeepGraphAgent(graph, options=DeepAgentOptions(transient=transient))


def measure(place: str) -> str:
    """Measure the water."""
    return f"{place}: 7.1 m, 1.2 m"


def publish(title: str) -> str:
    """Publish the report."""
    return f"{title} is published."


def _reply(messages: Sequence[BaseMessage]) -> list[AIMessageChunk]:
    """The next line of the script that the last human message starts."""
    begin = max(place for place, message in enumerate(messages) if message.type == "human")
    script = _SCRIPTS.get(str(messages[begin].content))
    if script is None:
        known = "".join(f"\n- {prompt.text}" for prompt in _PROMPTS)
        return says(f"I am scripted, and know this:\n{known}")
    said = sum(message.type == "ai" for message in messages[begin:])
    return script[min(said, len(script) - 1)](messages[-1])


def _todos(done: int) -> list[dict[str, str]]:
    states = ["completed"] * done + ["in_progress"] + ["pending"] * len(_STEPS)
    return [{"content": step, "status": state} for step, state in zip(_STEPS, states, strict=False)]


def _published(before: BaseMessage) -> list[AIMessageChunk]:
    is_refused = getattr(before, "status", "") == "error"
    return says("I keep it to myself, then." if is_refused else "The report is published.")


_SCRIPTS: Final[Mapping[str, Sequence[_Reply]]] = {
    "Write a report on the tides": (
        lambda _: calls("write_todos", todos=_todos(0)),
        lambda _: calls("task", subagent_type="researcher", description=_TASK),
        lambda _: calls("write_todos", todos=_todos(1)),
        lambda _: calls("write_file", file_path="/report.md", content=_REPORT),
        lambda _: calls("read_file", file_path="/report.md"),
        lambda _: calls("write_todos", todos=_todos(3)),
        lambda _: says("The report is in `/report.md`: high water in Brest is **7.1 m**, low water 1.2 m."),
    ),
    "Publish the report": (
        lambda _: [*says("I would publish it under this title:")[:-1], *calls("publish", title="Tides in Brest")],
        _published,
    ),
    # The sub-agent's task.
    _TASK: (lambda _: calls("measure", place="Brest"), lambda _: says(_FOUND)),
}

_PROMPTS: Final = (
    PagePrompt("Write a report on the tides", "Todos, a sub-agent and files"),
    PagePrompt("Publish the report", "An approval by interrupt"),
)
PAGE: Final = PageAgent(
    path="/api/deep-agent",
    name="Deep agent",
    about="A graph of deepagents in LangGraph. It plans, writes files, asks a sub-agent and waits for approval.",
    prompts=_PROMPTS,
)
