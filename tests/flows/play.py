"""Plays flows, and writes down in short lines what their runtimes tell."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from support.hang import HANG_SECONDS
from usechat.flows import Event, FlowRuntime, NodeContext, NodeFunction, RunSnapshot, RunStore

__all__ = ["Play", "edge", "flow", "line", "node", "reaches"]


def node(node_id: str, kind: str = "echo", value: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"id": node_id, "type": kind, "input": dict(value or {}), **more}


def edge(source: str, target: str, **more: Any) -> dict[str, Any]:
    return {"from": source, "to": target, **more}


def flow(nodes: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]] = (), **more: Any) -> dict[str, Any]:
    return {"name": "played", "nodes": list(nodes), "edges": list(edges), **more}


def line(event: Event) -> str:
    match event:
        case {"type": "edge:fire"}:
            about = [f"{event['from']}->{event['to']}"]
        case {"type": "command:received"}:
            about = [event["command"]["type"]]
        case _:
            names = ("nodeId", "reason", "content", "toolName", "status", "iteration", "error", "message")
            about = [str(event[name]) for name in names if name in event]
    return " ".join([event["type"], *about])


class Play:
    def __init__(
        self,
        played: Mapping[str, Any],
        nodes: Mapping[str, NodeFunction] | None = None,
        store: RunStore | None = None,
        **options: Any,
    ) -> None:
        self.events: list[Event] = []
        self.started: list[str] = []
        self.runtime = FlowRuntime(played, {"note": self._note, **(nodes or {})}, store, **options)
        self.runtime.on_event(self.events.append)

    async def run(self, value: Mapping[str, Any] | None = None) -> RunSnapshot:
        return await self.runtime.run(value)

    def lines(self, *kinds: str) -> list[str]:
        return [line(event) for event in self.events if not kinds or event["type"].startswith(kinds)]

    def on(self, words: str, react: Callable[[Event], object]) -> None:
        """React to the first event whose line is this."""

        def listen(event: Event) -> None:
            if line(event) == words:
                unsubscribe()
                react(event)

        unsubscribe = self.runtime.on_event(listen)

    async def until(self, words: str) -> Event:
        """Wait for the next event whose line is this."""
        found: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self.on(words, lambda event: found.done() or found.set_result(event))
        return await asyncio.wait_for(found, HANG_SECONDS)

    async def _note(self, context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        self.started.append(context.node_id)
        return value


async def reaches(condition: Callable[[], bool]) -> None:
    """Wait until it is so, for five seconds at most."""
    async with asyncio.timeout(HANG_SECONDS):
        # What is waited for tells nobody.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
