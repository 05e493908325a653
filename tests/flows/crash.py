"""Runs a flow on a database; the first process hangs in the node `b` until it is killed."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from usechat.database import Database
from usechat.flows import DatabaseRunStore, FlowRuntime, NodeContext, parse_flow

__all__ = ["FLOW"]

FLOW = """\
name: crash
nodes:
  - {id: a, type: work, input: {n: "{{ flow.input.n }}"}}
  - {id: b, type: work, input: {n: "{{ a.n + 1 }}"}}
  - {id: c, type: work, input: {n: "{{ b.n + state.added }}"}}
edges:
  - {from: a, to: b}
  - {from: b, to: c}
"""


async def main(directory: Path, run_id: str | None) -> None:
    async def work(context: NodeContext, value: dict[str, Any]) -> dict[str, Any]:
        with (directory / "ran").open("a", encoding="utf-8") as ran:
            ran.write(f"{context.node_id} {context.resume_message}\n")
        if context.node_id == "a":
            context.state.set("added", 100)
        if context.node_id == "b" and run_id is None:
            context.emit({"type": "agent:text:delta", "content": "half of "})
            await asyncio.Event().wait()
        return value

    store = DatabaseRunStore(Database(f"sqlite:///{directory}/runs.db"))
    runtime = FlowRuntime(parse_flow(FLOW), {"work": work}, store, run_id=run_id)
    runtime.on_event(lambda event: print(event["type"], event.get("nodeId", ""), flush=True))  # noqa: T201
    if run_id is None:
        (directory / "run_id").write_text(runtime.snapshot().run_id, encoding="utf-8")
    done = await runtime.run({"n": 1} if run_id is None else None)
    print(done.status, done.outputs["c"], flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
