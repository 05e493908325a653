"""Open Harness flows: a message starts the flow, resumes it, or goes to the node that waits for it.

`OpenHarnessAgent` has the runs of all chats. A run is in `_runs` from the message that starts or loads it until it is
over, or, with a store, until it is paused and stored. Everything runs in the thread of the event loop.

A chat's lock in `_locks` is held while its run is loaded, made or ended, because all of these wait: for the store, or
for the end of an earlier run. It is not held during a turn. `FlowRun.in_turn` is set under the lock, so that `stop`
sees whether the run has a turn.

How a turn ends decides what happens to its run (`_stop`): a newer message takes the run over, a shutdown pauses it if
there is a store, anything else aborts it. If the turn's last event ended the message, the run stays as it is.
"""

import asyncio
import hashlib
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from usechat.errors import AgentError, FlowError
from usechat.integrations import CountsUnused
from usechat.integrations.open_harness.flow_run import FlowRun, Runtime, is_runtime, prompt_of
from usechat.integrations.open_harness.translator import OpenHarnessTranslator, TransportOptions
from usechat.turns.chat import Chat
from usechat.turns.pump import Unused

__all__ = ["ChatRun", "ChatRuns", "OpenHarnessAgent", "Runtime", "RuntimeMaker", "is_runtime"]

_Event: TypeAlias = dict[str, Any]
_Key: TypeAlias = tuple[str, str]

_log = logging.getLogger("usechat")

_OPTIONS: Final = TransportOptions()
# A message may end with one of these events while the runtime continues.
_ENDS: Final = {f"{who}:{how}" for who in ("flow", "agent") for how in ("complete", "paused", "aborted")}
# How long an aborted flow may take to end.
_WIND_DOWN: Final = 1.0

RuntimeMaker: TypeAlias = Callable[[], Runtime] | Callable[[str | None], Runtime]
"""Makes a runtime for each run. With a store, it takes the id of the run to load, or None for a new run."""


class ChatRun(Struct, frozen=True):
    """The last run of a chat, and the last message that it got."""

    run_id: str
    message_id: str


class ChatRuns(Protocol):
    """Stores the last run of each chat; every `RunStore` does. `chat` is a key made of user and chat."""

    async def chat_run(self, chat: str) -> ChatRun | None: ...

    async def keep_chat_run(self, chat: str, run: ChatRun) -> None:
        """Store the run as the last one of the chat."""
        ...

    async def forget_chat(self, chat: str) -> None:
        """Delete all runs that the chat had."""
        ...


@runtime_checkable
class _Drains(Protocol):
    drain: Callable[[], Awaitable[None]] | None


class OpenHarnessAgent:
    """Runs a flow in each chat; a run outlives the turns that show it.

    `runtime` is a function that makes a new runtime for each run, or a single runtime for a single run. With a `store`
    that the runtimes write to as well, a run that was paused, or whose process died, continues with the next message of
    its chat, also in another process. The runtimes and the turns share the counter `unused`.
    """

    @classmethod
    def wrap(cls, thing: object) -> "OpenHarnessAgent | None":
        return cls(thing) if is_runtime(thing) else None

    def __init__(
        self, runtime: Runtime | RuntimeMaker, options: TransportOptions = _OPTIONS, store: ChatRuns | None = None
    ) -> None:
        """Prepare the chats.

        Raises:
            TypeError: there is a store, but no function that takes the id of a run.
        """
        if store is not None and not (callable(runtime) and _takes(runtime, None)):
            raise TypeError(
                "With a store, give a function that takes the id of a run, such as "
                "lambda run_id: FlowRuntime(flow, nodes, store, run_id=run_id)."
            )
        self.unused = Unused()
        self._runtime = runtime
        self._options = options
        self._store = store
        # By user and chat: on a server without history, two users may choose the same chat id.
        self._runs: dict[_Key, FlowRun] = {}
        # The name of the flow in each chat whose turn joined a run that was already running.
        self._joined: dict[_Key, str] = {}
        self._locks = WeakValueDictionary[_Key, asyncio.Lock]()

    def translator(self, chat: Chat) -> OpenHarnessTranslator:
        key: _Key = (chat.user or "", chat.id)
        # Called at the first event, when `run` has found the run of the chat.
        return OpenHarnessTranslator(self._options, live=True, joined=lambda: self._joined.get(key))

    def gives_way(self, chat_id: str, user: str | None) -> bool:
        """Whether a newer message may take over the run, so that the chat's current turn should end."""
        run = self._runs.get((user or "", chat_id))
        return run is not None and run.takes_messages

    def awaits_message(self, chat_id: str, user: str | None) -> bool:
        run = self._runs.get((user or "", chat_id))
        return run is not None and run.awaits_message

    async def run(self, chat: Chat) -> AsyncGenerator[_Event, None]:
        """Give the runtime the last message, if it is the user's, and yield events until the run ends or pauses.

        Raises:
            AgentError: the runtime refuses the message, or cannot continue.
        """
        key: _Key = (chat.user or "", chat.id)
        last = None
        try:
            async with self._lock(key):
                run = await self._run_for(key, chat)
                if run is not None:
                    run.in_turn = True
            if run is None:
                chat.write.finish()
                return
            await self._keep(key, run, chat)
            joins = run.status == "running"
            shown = await run.show(chat)
            if joins:
                self._joined[key] = run.flow_name
            async for event in shown:
                last = event.get("type")
                if last == "flow:paused" and self._store is not None:
                    # Another process may get the answer, so the run is stored before the page gets the question.
                    await _ended([run], _WIND_DOWN)
                yield event
        except asyncio.CancelledError:
            self._stop(key, chat)
            raise
        except GeneratorExit:
            # Unless the last event ended the message, a stop, a limit of the turn or an error did.
            if chat.stopping.is_set() or last not in _ENDS:
                self._stop(key, chat)
            raise
        finally:
            self._joined.pop(key, None)
            if key in self._runs:
                self._runs[key].in_turn = False
                self._runs[key].hide()
                self._drop_if_done(key, self._runs[key])

    async def stop(self, chat_id: str, user: str | None) -> None:
        """Abort the run of a chat that has no turn, so that the next message starts a new run."""
        key: _Key = (user or "", chat_id)
        async with self._lock(key):
            run = self._runs.get(key)
            if run is None:
                run = await self._kept(key)
            if run is not None and not run.in_turn:
                await self._end(key, run)

    async def forget(self, chat_id: str, user: str | None) -> None:
        """End the run of the chat, and delete all runs that it had."""
        key: _Key = (user or "", chat_id)
        async with self._lock(key):
            run = self._runs.get(key)
            if run is not None:
                # Before the deletion, which then includes its last writes.
                await self._end(key, run)
            if self._store is not None:
                await self._store.forget_chat(_name(key))

    async def aclose(self, grace: float) -> None:
        """Give running flows `grace` seconds to end, then abort them, or pause them if there is a store."""
        runs = list(self._runs.values())
        await _ended(runs, grace)
        for run in runs:
            if run.status == "running":
                run.abort(resumable=self._store is not None)
        await _ended(runs, _WIND_DOWN)
        for key, run in list(self._runs.items()):
            self._drop(key, run)
        if callable(self._runtime):
            await asyncio.gather(*(run.aclose() for run in runs))

    def _lock(self, key: _Key) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def _stop(self, key: _Key, chat: Chat) -> None:
        # A newer message of the same chat continues the run.
        if chat.stopped != "replaced" and key in self._runs:
            # So does the next message after a restart of the server.
            self._runs[key].abort(resumable=chat.stopped == "shutdown" and self._store is not None)

    async def _run_for(self, key: _Key, chat: Chat) -> FlowRun | None:
        """The run for this turn; None if there is nothing to do."""
        anew = chat.trigger == "regenerate-message"
        if prompt_of(chat) is None:
            if anew:
                raise AgentError("There is no message to answer.")
            run = self._runs.get(key)
            return run if run is not None and run.status == "running" else None
        messages = await chat.history()
        run = self._runs.get(key)
        if run is not None and run.is_over:
            self._drop(key, run)
            run = None
        elif run is None or self._drop_if_done(key, run):
            run = await self._kept(key)
        if run is not None:
            if not anew and run.precedes(messages):
                return run
            if not callable(self._runtime):
                raise AgentError("This runtime runs only once, so it cannot answer again.")
            await self._end(key, run)
        return self._adopt(key, self._make(None))

    async def _end(self, key: _Key, run: FlowRun) -> None:
        """Abort the run, and close its runtime, which may hold an address or unwritten events."""
        await run.end(_WIND_DOWN)
        if callable(self._runtime):
            await run.aclose()
        self._drop(key, run)

    async def _kept(self, key: _Key) -> FlowRun | None:
        """The last stored run of the chat, if it can continue."""
        kept = None if self._store is None else await self._store.chat_run(_name(key))
        if kept is None:
            return None
        runtime = self._make(kept.run_id)
        load: Callable[[], Awaitable[None]] | None = getattr(runtime, "load", None)
        try:
            if load is not None:
                await load()
        except (FlowError, ValueError) as error:
            # Its process died before it was stored, or the stored run cannot be read.
            _log.warning("run %s of a chat cannot continue, so a new run starts: %s", kept.run_id, error)
            return None
        if runtime.snapshot().status not in ("paused", "running"):
            return None
        return self._adopt(key, runtime, kept.message_id)

    async def _keep(self, key: _Key, run: FlowRun, chat: Chat) -> None:
        prompt = prompt_of(chat)
        if self._store is not None and prompt is not None:
            await self._store.keep_chat_run(_name(key), ChatRun(run.id, prompt.id))

    def _make(self, run_id: str | None) -> Runtime:
        if not callable(self._runtime):
            return self._runtime
        if self._store is None and _takes(self._runtime):
            return cast("Callable[[], Runtime]", self._runtime)()
        return cast("Callable[[str | None], Runtime]", self._runtime)(run_id)

    def _adopt(self, key: _Key, runtime: Runtime, prompted: str | None = None) -> FlowRun:
        run = self._runs[key] = FlowRun(runtime, lambda run: self._drop_if_done(key, run), prompted)
        if isinstance(runtime, CountsUnused):
            runtime.unused = self.unused
        if isinstance(runtime, _Drains):
            runtime.drain = run.drain
        return run

    def _drop_if_done(self, key: _Key, run: FlowRun) -> bool:
        """Drop a run that is over; with a store, only once everything is stored, but also if it is paused."""
        is_done = run.is_over if self._store is None else (run.is_over and run.has_stopped) or run.is_parked
        if is_done:
            self._drop(key, run)
        return is_done

    def _drop(self, key: _Key, run: FlowRun) -> None:
        if self._runs.get(key) is run:
            del self._runs[key]
            run.leave()


def _takes(function: Callable[..., object], *arguments: object) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def _name(key: _Key) -> str:
    # The index of a database has no room for two long ids.
    return hashlib.sha256(msgspec.json.encode(key)).hexdigest()


async def _ended(runs: Sequence[FlowRun], within: float) -> None:
    tasks = [run.task for run in runs if run.task is not None]
    if tasks:
        await asyncio.wait(tasks, timeout=within)
