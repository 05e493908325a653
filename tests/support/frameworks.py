"""LangChain, LangGraph and deepagents without their types, which are too partial for a strict checker."""

from importlib import import_module
from typing import Any, Final

__all__ = [
    "END",
    "START",
    "AsyncSqliteSaver",
    "HumanInTheLoopMiddleware",
    "InMemorySaver",
    "LocalShellBackend",
    "MessagesState",
    "StateGraph",
    "SummarizationMiddleware",
    "TodoListMiddleware",
    "ToolStrategy",
    "add_messages",
    "create_agent",
    "create_deep_agent",
    "get_runtime",
    "get_stream_writer",
    "interrupt",
    "tool",
]

_agents: Any = import_module("langchain.agents")
_middleware: Any = import_module("langchain.agents.middleware")
_graph: Any = import_module("langgraph.graph")

create_agent: Any = _agents.create_agent
HumanInTheLoopMiddleware: Any = _middleware.HumanInTheLoopMiddleware
SummarizationMiddleware: Any = _middleware.SummarizationMiddleware
TodoListMiddleware: Any = _middleware.TodoListMiddleware
ToolStrategy: Any = import_module("langchain.agents.structured_output").ToolStrategy
tool: Any = import_module("langchain_core.tools").tool
InMemorySaver: Any = import_module("langgraph.checkpoint.memory").InMemorySaver
AsyncSqliteSaver: Any = import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver
StateGraph: Any = _graph.StateGraph
MessagesState: Any = _graph.MessagesState
add_messages: Any = _graph.add_messages
START: Final[str] = _graph.START
END: Final[str] = _graph.END
get_runtime: Any = import_module("langgraph.runtime").get_runtime
get_stream_writer: Any = import_module("langgraph.config").get_stream_writer
interrupt: Any = import_module("langgraph.types").interrupt


def create_deep_agent(*arguments: Any, **options: Any) -> Any:
    """Import deepagents only where it is needed: it brings the packages of two providers with it."""
    return import_module("deepagents").create_deep_agent(*arguments, **options)


def LocalShellBackend(**options: Any) -> Any:  # noqa: N802
    return import_module("deepagents.backends").LocalShellBackend(**options)
