"""Random agents: each is a program, a list of steps that an agent of any kind can take."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from hypothesis import strategies as st

from json_values import FLAGS, TEXTS, VALUES
from usechat.events import Reasoning, ToolCall, ToolError, ToolResult
from usechat.protocol.chunks import (
    Abort,
    Error,
    Finish,
    FinishStep,
    ReasoningEnd,
    StartStep,
    TextDelta,
    TextEnd,
    TextStart,
    ToolInputDelta,
    ToolOutputAvailable,
)
from usechat.turns.chat import Chat

__all__ = ["PROGRAMS", "Program", "play"]

Where: TypeAlias = Literal["here", "task", "thread", "stray task", "stray thread"]


class Say(NamedTuple):
    """Yield a value."""

    event: Any


class Write(NamedTuple):
    """Call a method of the chat's writer somewhere, and perhaps bear its failure."""

    method: str
    arguments: tuple[Any, ...]
    where: Where = "here"
    bears: bool = True


class Raise(NamedTuple):
    error: type[BaseException]


class Stop(NamedTuple):
    """Have somebody stop the turn, and go on or wait for the stop."""

    waits: bool


class Pause(NamedTuple):
    """Let the readers have what was said so far."""


Step: TypeAlias = Say | Write | Raise | Stop | Pause


class Program(NamedTuple):
    kind: Literal["async generator", "generator", "coroutine"]
    steps: Sequence[Step]

    @property
    def asks(self) -> bool:
        """Whether it may ask for an approval, for which clients of v5 need a profile of their own."""
        return any(isinstance(step, Write) and step.method == "approval_request" for step in self.steps)


class _Unknown:
    """A value that is no JSON."""

    def __repr__(self) -> str:
        return "<unknown>"


def _endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


_CALLS: Final = st.sampled_from(("one", "two", "three", "", "x" * 9_000))
_TOOLS: Final = st.sampled_from(("weather", "search-web", "")) | TEXTS
_DATA_NAMES: Final = st.sampled_from(("progress", "toast"))
_WRONG: Final = st.sampled_from(
    (_Unknown(), float("nan"), float("inf"), 2**70, b"bytes", {1: 2}, {"set": {1}}, "\ud800", _endless(), Exception())
)
_ANY: Final = VALUES | VALUES | _WRONG
_SAID: Final = TEXTS | st.sampled_from(("Hello ", "\ud83d", "\ude00", "x" * 70_000))
_CHUNKS: Final = st.one_of(
    st.sampled_from((StartStep(), FinishStep(), Abort(), Error("My own words."), Finish("length"), Finish("stop"))),
    st.builds(TextStart, _CALLS),
    st.builds(TextDelta, _CALLS, TEXTS),
    st.builds(TextEnd, _CALLS),
    st.builds(ReasoningEnd, _CALLS),
    st.builds(ToolInputDelta, _CALLS, TEXTS),
    st.builds(ToolOutputAvailable, _CALLS, VALUES),
)
_SAY: Final = st.builds(
    Say,
    st.one_of(
        _SAID,
        _SAID.map(Reasoning),
        st.builds(ToolCall, _CALLS, _TOOLS, _ANY),
        st.builds(ToolResult, _CALLS, _ANY, FLAGS),
        st.builds(ToolError, _CALLS, TEXTS),
        _CHUNKS,
        _WRONG,
    ),
)
_METHODS: Final = st.one_of(
    *(
        st.tuples(st.just(method), st.tuples(*arguments))
        for method, *arguments in (
            ("text", _SAID),
            ("text", _SAID, st.sampled_from(("", "lane"))),
            ("reasoning", _SAID, st.sampled_from(("", "lane"))),
            ("end_part",),
            ("step",),
            ("tool_input_start", _CALLS, _TOOLS),
            ("tool_input_delta", _CALLS, TEXTS),
            ("tool_input", _CALLS, _TOOLS, _ANY),
            ("tool_input_error", _CALLS, _TOOLS, _ANY, TEXTS),
            ("tool_output", _CALLS, _ANY),
            ("tool_error", _CALLS, TEXTS),
            ("tool_denied", _CALLS),
            ("approval_request", _CALLS),
            ("source_url", TEXTS),
            ("source_document", TEXTS, st.just("text/plain")),
            ("file", st.just("data:text/plain;base64,aGk="), st.just("text/plain")),
            ("data", _DATA_NAMES, _ANY),
            ("metadata", st.dictionaries(st.sampled_from("ab"), VALUES, max_size=2) | _ANY),
            ("text", st.just(7)),
            ("finish",),
            ("abort",),
            ("fail", TEXTS),
        )
    )
)
_WHERE: Final[st.SearchStrategy[Where]] = st.sampled_from(
    ("here", "here", "task", "thread", "stray task", "stray thread")
)


def _call(call: tuple[str, tuple[Any, ...]], where: Where, bears: bool) -> Write:
    method, arguments = call
    return Write(method, arguments, where, bears)


_WRITE: Final = st.builds(_call, _METHODS, _WHERE, FLAGS)
_RARE: Final = st.one_of(
    st.builds(Raise, st.sampled_from((ValueError, KeyError, asyncio.CancelledError, SystemExit))),
    st.builds(Stop, FLAGS),
)
# Most of the steps say something, since a program ends with the first that fails.
_STEPS: Final = st.one_of(
    _SAY, _WRITE, _WRITE, st.just(Pause()), st.sampled_from((0, 0, 0, 1)).flatmap(lambda rare: _RARE if rare else _SAY)
)
PROGRAMS: Final = st.builds(
    Program, st.sampled_from(("async generator", "generator", "coroutine")), st.lists(_STEPS, max_size=14)
)


def play(program: Program, chat: Chat, stop: Callable[[], None]) -> Any:
    """The agent of a program, at work; `stop` is how somebody stops its turn, and may be called in any thread."""
    match program.kind:
        case "async generator":
            return _generate_async(program, chat, stop)
        case "generator":
            return _generate(program, chat, stop)
        case "coroutine":
            return _coroutine(program, chat, stop)


async def _generate_async(program: Program, chat: Chat, stop: Callable[[], None]) -> AsyncGenerator[Any, None]:
    for step in program.steps:
        if isinstance(step, Say):
            yield step.event
        else:
            await _take(step, chat, stop)


async def _coroutine(program: Program, chat: Chat, stop: Callable[[], None]) -> Any:
    last = None
    for step in program.steps:
        if isinstance(step, Say):
            last = step.event
        else:
            await _take(step, chat, stop)
    return last


def _generate(program: Program, chat: Chat, stop: Callable[[], None]) -> Generator[Any, None, None]:
    for step in program.steps:
        match step:
            case Say():
                yield step.event
            case Write(where="here" | "task"):
                _write(step, chat)
            case Write():
                thread = threading.Thread(target=_write_somewhere, args=(step, chat))
                thread.start()
                if step.where == "thread":
                    thread.join()
            case Raise():
                raise step.error
            case Stop():
                stop()
                # As agents do that block: it does not hear of the stop, and goes on when nobody waits for it.
                _NEVER.wait(0.05 if step.waits else 0)
            case Pause():
                _NEVER.wait(0.002)


_NEVER: Final = threading.Event()


async def _take(step: Step, chat: Chat, stop: Callable[[], None]) -> None:
    match step:
        case Write():
            await _write_async(step, chat)
        case Raise():
            raise step.error
        case Stop():
            stop()
            if step.waits:
                await asyncio.Event().wait()
        case _:
            await asyncio.sleep(0.002)


async def _write_async(step: Write, chat: Chat) -> None:
    match step.where:
        case "here":
            _write(step, chat)
        case "task":
            await asyncio.create_task(_in_task(_write, step, chat))
        case "stray task":
            _stray.add(task := asyncio.create_task(_in_task(_write_somewhere, step, chat)))
            task.add_done_callback(_stray.discard)
        case "thread":
            await asyncio.to_thread(_write, step, chat)
        case "stray thread":
            threading.Thread(target=_write_somewhere, args=(step, chat)).start()


_stray: Final[set[asyncio.Task[None]]] = set()


async def _in_task(write: Callable[[Write, Chat], None], step: Write, chat: Chat) -> None:
    write(step, chat)


def _write(step: Write, chat: Chat) -> None:
    try:
        getattr(chat.write, step.method)(*step.arguments)
    # What a writer refuses, an agent may take as lightly as it likes.
    except Exception:
        if not step.bears:
            raise


def _write_somewhere(step: Write, chat: Chat) -> None:
    """Write where nobody hears of a failure."""
    with suppress(Exception):
        _write(step, chat)
