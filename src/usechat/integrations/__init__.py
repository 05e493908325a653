"""What runs an agent: one folder or file for each framework, which drives it and translates its events.

An integration is a class with these two methods, made for the framework's own object:

- `run(chat)` drives one turn and yields the framework's events. It may wait. Closing the iterator cancels the work.
- `translator(chat)` gives what turns those events into `usechat.events`. It may not wait. A plain agent, which
  yields `usechat.events` itself, has None.

A class that has a row also has `wrap(thing)`, which recognises the framework's own object. What else an integration can
do is a protocol of its own: `Admits`, `GivesWay`, `ForgetsChats`, `StopsChats`, `CountsUnused`, and
`async aclose(grace)`, which ends what outlives a turn.

`INTEGRATIONS` is the one table: `create_app`, `usechat serve`, `usechat map`, the golden tests and the conformance run
go by it. An integration imports its framework only inside functions, and never for a recorded log.
"""

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from msgspec import Struct

from usechat.events import Mapper, Translator
from usechat.events.mapper import EventMapper, TranslatingMapper
from usechat.integrations.plain import PlainAgent, PlainFunction, is_plain
from usechat.protocol.writer import MessageWriter
from usechat.turns.chat import Chat
from usechat.turns.output import Output
from usechat.turns.pending import Admits, GivesWay
from usechat.turns.pump import Events, Unused, pump
from usechat.turns.threads import THREADS, Threads

__all__ = [
    "EXTRAS",
    "INTEGRATIONS",
    "Admits",
    "AnyAgent",
    "CountsUnused",
    "ForgetsChats",
    "GivesWay",
    "Integration",
    "LogTranslator",
    "Row",
    "StopsChats",
    "agent_of",
    "drive",
    "find_agent",
    "load_integration",
    "load_log_translators",
    "mapper_of",
]

_Event = TypeVar("_Event")

LogTranslator: TypeAlias = Callable[[Mapping[str, Any]], Translator[dict[str, Any]]]
"""Makes the translator of a recorded log, from its options; ValueError if there is no such option."""


class Row(Struct, frozen=True):
    """An integration: its class and the function that makes the translator of a log, both as `module:name`.

    `packages` are those that its users import; the extra with the name of the integration installs them.
    """

    agent: str
    log: str = ""
    packages: tuple[str, ...] = ()


INTEGRATIONS: Final[dict[str, Row]] = {
    "deep-agent": Row(
        "usechat.integrations.deepagent_sdk.agent:DeepAgent",
        "usechat.integrations.deepagent_sdk.translator:log_translator",
    ),
    "deepagents": Row("usechat.integrations.deepagents.agent:DeepGraphAgent", packages=("deepagents",)),
    "langgraph": Row(
        "usechat.integrations.langgraph.agent:LangGraphAgent",
        "usechat.integrations.langgraph.translator:log_translator",
        packages=("langchain_core", "langgraph"),
    ),
    "llama-index": Row(
        "usechat.integrations.llama_index.agent:LlamaIndexAgent",
        "usechat.integrations.llama_index.translator:log_translator",
        packages=("llama_index", "workflows"),
    ),
    "pydantic-ai": Row(
        "usechat.integrations.pydantic_ai.agent:PydanticAIAgent",
        "usechat.integrations.pydantic_ai.translator:log_translator",
        packages=("pydantic_ai",),
    ),
    "openai-agents": Row(
        "usechat.integrations.openai_agents.agent:OpenAIAgent",
        "usechat.integrations.openai_agents.translator:log_translator",
        packages=("agents",),
    ),
    "agno": Row(
        "usechat.integrations.agno.agent:AgnoAgent",
        "usechat.integrations.agno.translator:log_translator",
        packages=("agno",),
    ),
    "google-adk": Row(
        "usechat.integrations.google_adk.agent:ADKAgent",
        "usechat.integrations.google_adk.translator:log_translator",
        packages=("google.adk",),
    ),
    "claude-agent": Row(
        "usechat.integrations.claude_agent.agent:ClaudeAgent",
        "usechat.integrations.claude_agent.translator:log_translator",
        packages=("claude_agent_sdk",),
    ),
    "agent-framework": Row(
        "usechat.integrations.agent_framework:AgentFrameworkAgent",
        "usechat.integrations.agent_framework:log_translator",
        packages=("agent_framework",),
    ),
    "strands": Row(
        "usechat.integrations.strands.agent:StrandsAgent",
        "usechat.integrations.strands.translator:log_translator",
        packages=("strands",),
    ),
    "open-harness": Row(
        "usechat.integrations.open_harness.agent:OpenHarnessAgent",
        "usechat.integrations.open_harness.translator:log_translator",
    ),
    "ag-ui": Row("usechat.integrations.ag_ui.agent:AGUIAgent", "usechat.integrations.ag_ui.translator:log_translator"),
    "agent-ops": Row(
        "usechat.integrations.agent_ops.agent:AgentOpsAgent",
        "usechat.integrations.agent_ops.translator:log_translator",
    ),
}
"""The integrations by their names; the first that recognises an object takes it.

Another package adds one by an entry point of the group `usechat.integrations`: its name, and `module:Class`.
"""

EXTRAS: Final[dict[str, str]] = {
    "fastapi": "fastapi",
    **{package: name for name, row in INTEGRATIONS.items() for package in row.packages},
}
"""The extra of each package that agents and apps import themselves."""


class Integration(Protocol[_Event]):
    """Drives one kind of agent."""

    def run(self, chat: Chat) -> Events[_Event]:
        """Drive the agent for one turn, and clean up when the iterator is closed; a sync iterator gets a thread."""
        ...

    def translator(self, chat: Chat) -> Translator[_Event] | None:
        """Make the translator of one turn; None if the agent yields `usechat.events` itself."""
        ...


class _Recognises(Protocol):
    """The class of an integration that `create_app` finds by itself."""

    @classmethod
    def wrap(cls, thing: object) -> "Integration[Any] | None":
        """The agent for the framework's own object, recognised without importing the framework; None if it is none."""
        ...


@runtime_checkable
class CountsUnused(Protocol):
    """An agent or a runtime that maps events of others, with a counter of those that it could not use."""

    unused: Unused


@runtime_checkable
class ForgetsChats(Protocol):
    """An agent that keeps something of a chat, which goes when the chat is deleted."""

    async def forget(self, chat_id: str, user: str | None) -> None: ...


@runtime_checkable
class StopsChats(Protocol):
    """An agent that has something to stop in a chat between its turns."""

    async def stop(self, chat_id: str, user: str | None) -> None: ...


class _Driver(Protocol):
    @property
    def run(self) -> Callable[..., Any]: ...


class _Transport(Protocol):
    @property
    def agent(self) -> Any: ...


class _Graph(Protocol):
    @property
    def astream(self) -> Callable[..., Any]: ...

    @property
    def aget_state(self) -> Callable[..., Any]: ...


class _AgentsSDKAgent(Protocol):
    @property
    def as_tool(self) -> Callable[..., Any]: ...


class _Events(Protocol):
    @property
    def stream_with_events(self) -> Callable[..., Any]: ...


class _ClaudeOptions(Protocol):
    @property
    def mcp_servers(self) -> Any: ...


class _Runtime(Protocol):
    @property
    def on_event(self) -> Callable[..., Any]: ...


class _ADK(Protocol):
    @property
    def run_async(self) -> Callable[..., Any]: ...


class _ADKApp(Protocol):
    @property
    def root_agent(self) -> Any: ...


AnyAgent: TypeAlias = (
    Callable[[Chat], Any]
    | _Driver
    | _Transport
    | _Graph
    | _Events
    | _Runtime
    | _AgentsSDKAgent
    | _ClaudeOptions
    | _ADK
    | _ADKApp
)
"""What can be an agent, for type checkers: no more than what tells the kinds apart, so that none is refused wrongly."""


def load_integration(name: str) -> type[Any]:
    """The class of the integration with this name.

    Raises:
        KeyError: there is none.
    """
    return _load(_listed()[name].agent)


def load_log_translators() -> dict[str, LogTranslator]:
    """What maps recorded logs, by the names of the integrations that can."""
    return {name: _load(row.log) for name, row in _listed().items() if row.log}


def find_agent(thing: object, threads: Threads = THREADS) -> Integration[Any] | None:
    """What drives this thing, if it is an agent of any kind."""
    for name in _listed():
        agent = cast("_Recognises", load_integration(name)).wrap(thing)
        if agent is not None:
            return agent
    # The second is the agent of a transport.
    for candidate in (thing, getattr(thing, "agent", None)):
        if _is_integration(candidate):
            return cast("Integration[Any]", candidate)
    return cast("Any", PlainAgent(cast("PlainFunction", thing), threads)) if is_plain(thing) else None


def agent_of(thing: object, threads: Threads = THREADS) -> Integration[Any]:
    """What drives this thing; `threads` are for agents that cannot wait.

    Raises:
        TypeError: nothing here can drive it.
    """
    agent = find_agent(thing, threads)
    if agent is not None:
        return agent
    name = thing.__name__ if isinstance(thing, type) else type(thing).__name__
    raise TypeError(
        f"{name} is not an agent: give a function that takes the chat and yields text, a runtime, a compiled graph of "
        "LangGraph, an object with stream_with_events(messages, state, thread_id, abort), or one with run(chat) and "
        "translator(chat)."
    )


def drive(
    agent: Integration[Any], chat: Chat, output: Output, *, unused: Unused, threads: Threads = THREADS
) -> Awaitable[None]:
    """Run the agent for one turn, and write what it says to the output."""
    mapper = mapper_of(agent, chat, output.writer)
    return pump(agent.run(chat), mapper, output, unused=unused, threads=threads)


def mapper_of(agent: Integration[_Event], chat: Chat, writer: MessageWriter) -> Mapper[_Event]:
    """What turns the agent's events into the chunks of this turn."""
    translator = agent.translator(chat)
    if translator is None:
        # Then its events are those of `usechat.events`.
        return cast("Mapper[_Event]", EventMapper(writer))
    return TranslatingMapper(translator, writer)


def _listed() -> Mapping[str, Row]:
    return {**INTEGRATIONS, **{point.name: Row(point.value) for point in entry_points(group="usechat.integrations")}}


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _is_integration(thing: object) -> bool:
    methods = (getattr(thing, "run", None), getattr(thing, "translator", None))
    # A class has the methods, too.
    return all(map(callable, methods)) and not isinstance(thing, type)
