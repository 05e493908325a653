"""The node types that every flow has, and whether those of a flow can be what they are used for."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from usechat.flows.context import NodeContext, NodeFunction, without_state
from usechat.flows.spec import Flow, Node, nearest
from usechat.turns.threads import is_any

__all__ = ["BUILT_IN", "AgentFunction", "check_nodes"]


@without_state
async def _constant(_context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
    return {"value": value.get("value")}


@without_state
async def _echo(_context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
    return value


BUILT_IN: Final[Mapping[str, NodeFunction]] = {"constant": _constant, "echo": _echo}
"""`constant` gives `{value}` of its input, `echo` its input as it is."""


class AgentFunction:
    """A node function that runs an agent, and so needs a prompt that is a text."""

    def __init__(self, run: NodeFunction) -> None:
        self._run = run

    async def __call__(self, context: NodeContext, value: dict[str, Any]) -> Any:
        return await self._run(context, value)


def check_nodes(flow: Flow, functions: Mapping[str, NodeFunction]) -> None:
    """Check that there is a function for each node, and that it can be one.

    Raises:
        FlowError: a node could not run.
    """
    for number, node in enumerate(flow.nodes):
        path = f"nodes[{number}]"
        if node.type not in functions:
            meant = nearest(node.type, functions)
            hint = f"Did you mean {meant!r}?" if meant else f"Write one of {', '.join(sorted(functions))}."
            raise flow.error(f"{path}.type", f"There is no node type {node.type!r}.", f"{hint} Or register it.")
        wrong = _wrong_function(functions[node.type])
        if wrong is not None:
            raise flow.error(f"{path}.type", f"The node type {node.type!r} is {wrong[0]}.", wrong[1])
        if isinstance(functions[node.type], AgentFunction):
            _check_prompt(flow, f"{path}.input.prompt", node)


def _check_prompt(flow: Flow, path: str, node: Node) -> None:
    prompt = node.input.get("prompt", "")
    if not isinstance(prompt, str):
        raise flow.error(path, f"The prompt of an agent is a text, and not {prompt!r}.", "Write it in quotes.")


def _wrong_function(function: object) -> tuple[str, str] | None:
    """What is wrong with the function of a node, and the remedy."""
    if not callable(function):
        return "no function", "Write agent_node(…) around an agent."
    if any(is_any(kind, function) for kind in (inspect.isasyncgenfunction, inspect.isgeneratorfunction)):
        return "a generator, as agents are", "Write agent_node(…) around it."
    if _is_plain(function):
        return "a plain function", "Write `async def`, or agent_node(…) around an agent."
    if not _takes_two(function):
        return (
            "a function of other arguments",
            "Let it take `(context, input)`, or write agent_node(…) around an agent.",
        )
    return None


def _is_plain(function: Callable[..., Any]) -> bool:
    """Whether it is a `def` that says nothing of something to wait for.

    A lambda and a function within another one may hand on what an `async def` gives.
    """
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(inspect.unwrap(function)):
        return False
    result = str(function.__annotations__.get("return", ""))
    awaitable = any(word in result for word in ("Awaitable", "Coroutine", "Future", "Task"))
    return function.__closure__ is None and function.__name__ != "<lambda>" and not awaitable


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        # Some functions of C do not say what they take.
        return True
    return True
