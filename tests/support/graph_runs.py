"""Runs of real graphs whose streams are kept as golden files.

`PYTHONPATH=tests python -m support.graph_runs` records them anew.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypedDict, cast

import msgspec
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import BaseModel

from support.driving import new_chat, user
from support.frameworks import (
    START,
    HumanInTheLoopMiddleware,
    InMemorySaver,
    MessagesState,
    StateGraph,
    SummarizationMiddleware,
    ToolStrategy,
    add_messages,
    create_agent,
    get_stream_writer,
    interrupt,
    tool,
)
from support.scripted_model import Reply, ScriptedModel, calls, says, thinks
from usechat.integrations.langgraph import LangGraphAgent
from usechat.protocol.messages import UIMessage
from usechat.protocol.values import plain

__all__ = ["RUNS", "live_parts", "renamed"]

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "langgraph"
_ID: Final = re.compile(r"(lc_run--)?([0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32})")
_MESSAGE: Final = (
    "type",
    "id",
    "content",
    "content_blocks",
    "tool_call_chunks",
    "tool_calls",
    "invalid_tool_calls",
    "tool_call_id",
    "status",
    "usage_metadata",
    "response_metadata",
    "chunk_position",
)
_METADATA: Final = ("langgraph_checkpoint_ns", "lc_agent_name", "lc_source", "lc_internal_call")

_Part: TypeAlias = dict[str, Any]


@tool
async def weather(city: str) -> dict[str, Any]:
    """Look outside."""
    get_stream_writer()({"type": "data-looked", "data": {"at": city}})
    return {"city": city, "celsius": 12}


@tool
async def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


@tool
async def broken() -> str:
    """Break."""
    raise ValueError("secret")


class Report(BaseModel):
    celsius: int


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    plan: list[str]


def text_only() -> Any:
    return create_agent(ScriptedModel(replies=[[*thinks("Hm", "."), *says("Good ", "day")]]), [])


def two_tools() -> Any:
    looks = [*says("I look."), *calls("c1", "weather", {"city": "Bonn"}), *calls("c2", "weather", {"city": "Kiel"}, 1)]
    return create_agent(ScriptedModel(replies=[looks, says("Cold.")]), [weather])


def tool_failure() -> Any:
    return create_agent(ScriptedModel(replies=[calls("c1", "weather", {"town": "x"}), says("I cannot.")]), [weather])


def tool_exception() -> Any:
    return create_agent(ScriptedModel(replies=[[*says("Well"), *calls("c1", "broken", {})]]), [broken])


def no_streaming() -> Any:
    replies = [[*says("I look."), *calls("c1", "weather", {"city": "Bonn"})], says("Cold.")]
    return create_agent(ScriptedModel(replies=replies, streams=False), [weather])


def structured_output() -> Any:
    reply = [*says("So: "), *calls("c1", "Report", {"celsius": 12})]
    return create_agent(ScriptedModel(replies=[reply]), [weather], response_format=ToolStrategy(Report))


def summary() -> Any:
    def reply(messages: list[BaseMessage]) -> Reply:
        return says("SUMMARY") if "Messages to summarize" in str(messages[0].content) else says("Answer.")

    model = ScriptedModel(replies=reply)
    summarize = SummarizationMiddleware(model, trigger=("messages", 3), keep=("messages", 1))
    return create_agent(model, [], middleware=[summarize])


def keys_of_the_state() -> Any:
    async def first(_state: Any) -> dict[str, Any]:
        return {"plan": ["look"]}

    async def second(state: Any) -> dict[str, Any]:
        return {"plan": [*state["plan"], "tell"], "messages": [AIMessage("Done.")]}

    graph = StateGraph(State).add_node("first", first).add_node("second", second)
    return graph.add_edge(START, "first").add_edge("first", "second").compile()


def approvals(mode: str) -> Callable[[], Any]:
    def make() -> Any:
        letters = [
            *calls("c1", "send", {"to": "Bonn"}),
            *calls("c2", "weather", {"city": "Bonn"}, 1),
            *calls("c3", "send", {"to": "Kiel"}, 2),
        ]
        gate = HumanInTheLoopMiddleware({"send": True}, interrupt_mode=mode)
        model = ScriptedModel(replies=[letters])
        return create_agent(model, [send, weather], middleware=[gate], checkpointer=InMemorySaver())

    return make


def two_questions() -> Any:
    def node(question: str) -> Any:
        async def ask(_state: Any) -> dict[str, Any]:
            return {"messages": [AIMessage(f"{question} {interrupt(question)}")]}

        return ask

    graph = StateGraph(MessagesState).add_node("who", node("Who?")).add_node("where", node("Where?"))
    return graph.add_edge(START, "who").add_edge(START, "where").compile(checkpointer=InMemorySaver())


def sub_agents(*tasks: str) -> Callable[[], Any]:
    def make() -> Any:
        def reply(messages: list[BaseMessage]) -> Reply:
            asked = str(messages[0].content)
            looks = [*says("I look. "), *calls(f"look-{asked}", "weather", {"city": asked})]
            return says(f"Cold in {asked}.") if messages[-1].type == "tool" else looks

        helper = create_agent(ScriptedModel(replies=reply), [weather], name="helper")

        @tool
        async def ask(city: str) -> str:
            """Ask a helper."""
            answer = await helper.ainvoke({"messages": [("user", city)]})
            return str(answer["messages"][-1].content)

        asked = [chunk for n, task in enumerate(tasks) for chunk in calls(f"c{n}", "ask", {"city": task}, n)]
        return create_agent(ScriptedModel(replies=[asked, says("Cold.")]), [ask])

    return make


RUNS: Final[dict[str, tuple[Callable[[], Any], dict[str, Any]]]] = {
    "text_only": (text_only, {}),
    "two_tools": (two_tools, {}),
    "tool_failure": (tool_failure, {}),
    "tool_exception": (tool_exception, {}),
    "no_streaming": (no_streaming, {}),
    "structured_output": (structured_output, {}),
    "summary": (summary, {}),
    "keys_of_the_state": (keys_of_the_state, {"state": ["plan"]}),
    "approvals_together": (approvals("batched"), {}),
    "approvals_one_by_one": (approvals("per_call"), {}),
    "two_questions": (two_questions, {}),
    "sub_agent": (sub_agents("Bonn"), {}),
    "sub_agent_with_lanes": (sub_agents("Bonn"), {"subgraphs": "lanes"}),
    "sub_agents_off": (sub_agents("Bonn"), {"subgraphs": "off"}),
    "two_sub_agents_of_one_name": (sub_agents("Bonn", "Kiel"), {}),
}
"""How each graph is made, and the options of its source."""


async def live_parts(name: str) -> AsyncGenerator[Mapping[str, Any], None]:
    """The parts of a run as they come, up to an exception that leaves the graph."""
    make, options = RUNS[name]
    said = UIMessage("a1", "assistant", [{"type": "text", "text": "Hi"}])
    chat = new_chat(user("Hello"), said, user("And now?", "u2"))
    async with aclosing(LangGraphAgent(make(), **options).run(chat)) as parts:
        try:
            async for part in parts:
                yield part
        except ValueError:
            # That of the broken tool.
            return


def renamed(text: str) -> str:
    """The text with numbers for the ids that are new in each run, in the order in which they come."""
    ids: dict[str, str] = {}

    def rename(found: re.Match[str]) -> str:
        prefix, name = found.groups()
        number = len(ids) + 1
        known = ids.setdefault(name, f"{number:032x}" if len(name) == 32 else f"{0:08x}-0000-0000-0000-{number:012x}")
        return f"{prefix or ''}{known}"

    return _ID.sub(rename, text)


def _recorded(value: Any) -> Any:
    """The value as JSON, with the messages and interrupts in it as the mapper reads them."""
    if isinstance(value, BaseMessage):
        fields = {name: getattr(value, name, None) for name in _MESSAGE}
        return {name: plain(field) for name, field in fields.items() if field not in (None, [], {})}
    if isinstance(value, Mapping):
        return {str(name): _recorded(item) for name, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_recorded(item) for item in cast("list[Any]", value)]
    if hasattr(value, "response_schema"):
        return {"id": value.id, "value": _recorded(value.value), "response_schema": plain(value.response_schema)}
    return plain(value)


def _slim(part: Mapping[str, Any]) -> _Part:
    data = part["data"]
    if part["type"] == "messages":
        message, metadata = data
        data = (message, {name: metadata[name] for name in _METADATA if metadata.get(name)})
    elif part["type"] == "tasks" and "input" in data:
        # The state is of no use, and in every task.
        given = data["input"] if isinstance(data["input"], list) else None
        data = {**data, "input": given, "metadata": {"lc_agent_name": data.get("metadata", {}).get("lc_agent_name")}}
    elif part["type"] == "tasks":
        data = {**data, "result": None}
    return {"type": part["type"], "ns": list(part["ns"]), "data": _recorded(data)}


async def _record() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name, (_, options) in RUNS.items():
        lines = [msgspec.json.encode(_slim(part)).decode() async for part in live_parts(name)]
        (GOLDEN / f"{name}.events.jsonl").write_text(renamed("\n".join(lines)) + "\n", "utf-8")
        if options:
            (GOLDEN / f"{name}.options.json").write_text(msgspec.json.encode(options).decode() + "\n", "utf-8")


if __name__ == "__main__":
    asyncio.run(_record())
