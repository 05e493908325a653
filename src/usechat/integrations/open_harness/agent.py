"""Open Harness flows: a message runs the flow, wakes it or goes to the node that waits for it.

`OpenHarnessAgent` has the runs of all chats, each in `_runs` from the message that needs it until it is over, or, with
a store, until it is paused and stored. Everything belongs to the thread of the event loop.

A chat's lock in `_locks` is held while its run is looked for, made, or ended, which all wait: for the store, for the
end of an earlier run. It is not held during a turn. `FlowRun.in_turn` is set under the lock, so that `stop` sees
whether a turn has the run.

How a turn ends decides what becomes of its run (`_stop`): a newer message takes the run over, a shutdown pauses it if a
store keeps it, anything else aborts it. A turn whose last event has ended the message leaves the run as it is.
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
# With one of these events a message may end while the runtime goes on.
_ENDS: Final = {f"{who}:{how}" for who in ("flow", "agent") for how in ("complete", "paused", "aborted")}
# How long a flow that was aborted may take to end.
_WIND_DOWN: Final = 1.0

RuntimeMaker: TypeAlias = Callable[[], Runtime] | Callable[[str | None], Runtime]
"""Makes a runtime for each run; one that takes the id of a run, or None for a new one, may also go on with that."""


class ChatRun(Struct, frozen=True):
    """The last run of a chat, and the last message that it got."""

    run_id: str
    message_id: str


class ChatRuns(Protocol):
    """Which run each chat had last; the stores of runs keep that, too. `chat` is a key of user and chat."""

    async def chat_run(self, chat: str) -> ChatRun | None: ...

    async def keep_chat_run(self, chat: str, run: ChatRun) -> None:
        """Keep the run as the last one of the chat."""
        ...

    async def forget_chat(self, chat: str) -> None:
        """Delete all runs that the chat had."""
        ...


@runtime_checkable
class _Drains(Protocol):
    drain: Callable[[], Awaitable[None]] | None


class OpenHarnessAgent:
    """Drives the runtimes of chats, which outlive their turns.

    `runtime` is a function that makes a new one for each run, or a single runtime for a single run. With a `store` that
    the runtimes write to as well, a run that was paused, or whose process died, goes on with the next message of its
    chat, also in another process. The runtimes and the turns share the counter `unused`.
    """

    @classmethod
    def wrap(cls, thing: object) -> "OpenHarnessAgent | None":
        return cls(thing) if is_runtime(thing) else None

    def __init__(
        self, runtime: Runtime | RuntimeMaker, options: TransportOptions = _OPTIONS, store: ChatRuns | None = None
    ) -> None:
        """Prepare the chats.

        Raises:
            TypeError: there is a store, but no function that makes a runtime for the id of a run.
        """
        if store is not None and not (callable(runtime) and _takes(runtime, None)):
            raise TypeError(
                "With a store the transport takes a function of a run's id, such as "
                "lambda run_id: FlowRuntime(flow, nodes, store, run_id=run_id)."
            )
        self.unused = Unused()
        self._runtime = runtime
        self._options = options
        self._store = store
        # By the user as well, since a server that keeps no chats lets two users choose the same id.
        self._runs: dict[_Key, FlowRun] = {}
        # The names of the flows that were running when the turn of their chat began.
        self._joined: dict[_Key, str] = {}
        self._locks = WeakValueDictionary[_Key, asyncio.Lock]()

    def translator(self, chat: Chat) -> OpenHarnessTranslator:
        key: _Key = (chat.user or "", chat.id)
        # Asked at the first event: by then, `run` has found the run of the chat.
        return OpenHarnessTranslator(self._options, live=True, joined=lambda: self._joined.get(key))

    def gives_way(self, chat_id: str, user: str | None) -> bool:
        """Whether the flow would take a newer message, so that the turn that runs in the chat may end for it."""
        run = self._runs.get((user or "", chat_id))
        return run is not None and run.takes_messages

    def awaits_message(self, chat_id: str, user: str | None) -> bool:
        run = self._runs.get((user or "", chat_id))
        return run is not None and run.awaits_message

    async def run(self, chat: Chat) -> AsyncGenerator[_Event, None]:
        """Give the runtime the last message, if it is the user's, and follow the run to its end or its next pause.

        Raises:
            AgentError: the runtime cannot take the message or go on.
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
                    # The user may answer to another process, so the run is stored before the page gets the question.
                    await _ended([run], _WIND_DOWN)
                yield event
        except asyncio.CancelledError:
            self._stop(key, chat)
            raise
        except GeneratorExit:
            # Unless the last event has ended the message, a stop, a limit of the turn or a failure did.
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
        """End the run of a chat in which no turn runs, so that the next message begins another one."""
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
                # First, so that what it still writes is deleted, too.
                await self._end(key, run)
            if self._store is not None:
                await self._store.forget_chat(_name(key))

    async def aclose(self, grace: float) -> None:
        """Give the flows that still run `grace` seconds, then abort them, or pause them if there is a store.

        A flow that is paused is let go as it is.
        """
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
        # A newer message of the same chat goes on with the run that it finds.
        if chat.stopped != "replaced" and key in self._runs:
            # So does the next message after the server was started again.
            self._runs[key].abort(resumable=chat.stopped == "shutdown" and self._store is not None)

    async def _run_for(self, key: _Key, chat: Chat) -> FlowRun | None:
        """The run that takes the turn; None if there is nothing to do."""
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
        """Abort the run, and close its runtime, which may hold an address or have something to write."""
        await run.end(_WIND_DOWN)
        if callable(self._runtime):
            await run.aclose()
        self._drop(key, run)

    async def _kept(self, key: _Key) -> FlowRun | None:
        """The run that the chat had when it was seen last, if it can go on."""
        kept = None if self._store is None else await self._store.chat_run(_name(key))
        if kept is None:
            return None
        runtime = self._make(kept.run_id)
        load: Callable[[], Awaitable[None]] | None = getattr(runtime, "load", None)
        try:
            if load is not None:
                await load()
        except (FlowError, ValueError) as error:
            # It died before it was stored, or what is stored cannot be read.
            _log.warning("the run %s of a chat cannot go on, so another one is begun: %s", kept.run_id, error)
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
        """Let go of a run that is over; if there is a store, not before that knows it, but of a paused one as well."""
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
    # An index of a database has no room for two long ids.
    return hashlib.sha256(msgspec.json.encode(key)).hexdigest()


async def _ended(runs: Sequence[FlowRun], within: float) -> None:
    tasks = [run.task for run in runs if run.task is not None]
    if tasks:
        await asyncio.wait(tasks, timeout=within)
