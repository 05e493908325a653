"""A graph of `create_deep_agent` with a scripted model: todos, files, a sub-agent, and a call that needs approval."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, TypeAlias

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable

from usechat.demo import pieces
from usechat.ids import new_id
from usechat.integrations.deepagent_sdk.events import NOISY
from usechat.integrations.deepagent_sdk.translator import DeepAgentOptions
from usechat.integrations.deepagents import DeepGraphAgent
from usechat.server.page import PageAgent, PagePrompt

__all__ = ["PAGE", "ScriptedModel", "calls", "make_agent", "says", "tool_call"]

_Reply: TypeAlias = Callable[[BaseMessage], list[AIMessageChunk]]
"""What the model says next, given the message before."""

_STEPS: Final = ("Find out the heights", "Write the report", "Read it once more")
_TASK: Final = "Find the heights of the tides in Brest"
_FOUND: Final = "High water in Brest is 7.1 m, low water 1.2 m."
_REPORT: Final = "# Tides in Brest\n\nHigh water: 7.1 m\nLow water: 1.2 m\n"


def make_agent(pace: float) -> DeepGraphAgent:
    """Make the graph. Its model writes one word every `pace` seconds, and its threads are in memory."""
    # Their types are not complete enough for a strict checker.
    deepagents: Any = import_module("deepagents")
    checkpoints: Any = import_module("langgraph.checkpoint.memory")
    middleware: Any = import_module("langchain.agents.middleware")
    graph = deepagents.create_deep_agent(
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
        middleware=[middleware.TodoListMiddleware()],
        interrupt_on={"publish": {"allowed_decisions": ["approve", "reject"]}},
        checkpointer=checkpoints.InMemorySaver(),
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


class ScriptedModel(BaseChatModel):
    """Streams the chunks that `reply` makes of the messages, one every `pace` seconds."""

    # A function; pydantic would look into its type.
    reply: Any
    pace: float = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_options: Any) -> Runnable[Any, AIMessage]:
        return self

    async def chunks(self, messages: Sequence[BaseMessage]) -> AsyncIterator[AIMessageChunk]:
        for chunk in self.reply(messages):
            await asyncio.sleep(self.pace)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **_options: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async for message in self.chunks(messages):
            chunk = ChatGenerationChunk(message=message)
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_options: Any,
    ) -> ChatResult:
        raise NotImplementedError("This model only streams.")


def says(text: str) -> list[AIMessageChunk]:
    """Text, word by word, and what it cost."""
    usage: Any = {"input_tokens": 800, "output_tokens": len(text) // 4, "total_tokens": 800 + len(text) // 4}
    end = AIMessageChunk(content="", usage_metadata=usage, chunk_position="last")
    return [*(AIMessageChunk(content=word) for word in pieces(text)), end]


def calls(name: str, **args: Any) -> list[AIMessageChunk]:
    """A tool call whose arguments stream word by word."""
    return tool_call(new_id(), name, pieces(json.dumps(args)))


def tool_call(call_id: str, name: str, args: Iterable[str], index: int = 0) -> list[AIMessageChunk]:
    """A tool call whose arguments stream in these pieces."""
    head: Any = {"id": call_id, "name": name, "args": "", "index": index, "type": "tool_call_chunk"}
    rest: list[Any] = [{**head, "id": None, "name": None, "args": piece} for piece in args]
    return [AIMessageChunk(content="", tool_call_chunks=[piece]) for piece in (head, *rest)]
