"""`usechat map`: turn a log of events into the stream that a page would get."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, TypeAlias, cast

import msgspec
import typer

from usechat.cli.options import read_switches, refuse
from usechat.errors import MappingError
from usechat.events import Mapper
from usechat.events.mapper import TranslatingMapper
from usechat.integrations import load_log_translators
from usechat.protocol.chunks import Chunk
from usechat.protocol.clients import ClientName
from usechat.protocol.codec import encode_chunk
from usechat.protocol.frames import encode_frame
from usechat.protocol.reader import MessageReader
from usechat.protocol.sse import DONE
from usechat.protocol.writer import MessageWriter
from usechat.stream import Unused, map_events

__all__ = ["map_log"]

_Event: TypeAlias = dict[str, Any]
_Output: TypeAlias = Literal["sse", "chunks", "message"]

_TRANSLATORS: Final = load_log_translators()
_NAMES: Final = ", ".join(_TRANSLATORS)
_LATE: Final = "The run had ended."


class _LineError(Exception):
    """A line of the log is not an event. The text says which line and why."""


def map_log(
    source: Annotated[str, typer.Argument(help=f"Where the events come from: {_NAMES}.")],
    file: Annotated[str, typer.Argument(help="A log with one JSON object per line, or - for stdin.")],
    *,
    client: Annotated[ClientName, typer.Option(help="The clients that must understand the stream.")] = "portable",
    output: Annotated[_Output, typer.Option(help="Print the stream, its chunks one per line, or the message.")] = "sse",
    option: Annotated[list[str], typer.Option(help="An option of the source, as name=true. Repeat it for more.")] = [],  # noqa: B006
) -> None:
    """Turn a log of events into the stream that a page would get. The same log always gives the same stream."""
    numbers = count(1)
    writer = MessageWriter("message-1", new_id=lambda: f"id-{next(numbers)}", client=client)
    mapper = _mapper(source, writer, option)
    unused = _Counted()
    try:
        with _opened(file) as log, (lines := _Lines(log)).interruptible():
            asyncio.run(_print(_mapped(lines, mapper, writer, unused), output))
    except _LineError as error:
        typer.echo(f"{'<stdin>' if file == '-' else file}:{error}", err=True)
        raise typer.Exit(1) from None
    finally:
        for reason, times in unused.counts.items():
            typer.echo(f"not used, {times} {'event' if times == 1 else 'events'}: {reason}", err=True)


def _mapper(source: str, writer: MessageWriter, options: list[str]) -> Mapper[_Event]:
    if source not in _TRANSLATORS:
        refuse(f"There is no source {source!r:.60}. The sources are {_NAMES}.")
    try:
        return TranslatingMapper(_TRANSLATORS[source](read_switches(options)), writer)
    except ValueError as error:
        refuse(str(error))


def _opened(file: str) -> AbstractContextManager[BinaryIO]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        refuse(f"{file} cannot be read: {error.strerror}.")


class _Counted(Unused):
    """Counts events and logs nothing: the command prints the counts at the end."""

    def __call__(self, error: MappingError) -> None:
        self.counts[str(error)] += 1


async def _mapped(
    lines: "_Lines", mapper: Mapper[_Event], writer: MessageWriter, unused: Unused
) -> AsyncGenerator[Chunk, None]:
    async with aclosing(map_events(lines.events(), mapper, writer, unused=unused)) as chunks:
        async for chunk in chunks:
            yield chunk
    async for _ in lines.events():
        unused.counts[_LATE] += 1
    if lines.problem is not None:
        raise lines.problem


class _Lines:
    """The events of a log. Ctrl-C, or a line that is not an event, ends them and becomes the `problem`."""

    def __init__(self, log: Iterable[bytes]) -> None:
        self.problem: _LineError | KeyboardInterrupt | None = None
        self._events = _events(log)
        self._reading = False
        self._interrupted = False

    async def events(self) -> AsyncIterator[_Event]:
        try:
            while (event := self._next()) is not None:
                yield event
        except (_LineError, KeyboardInterrupt) as problem:
            self.problem = problem

    @contextmanager
    def interruptible(self) -> Generator[None, None, None]:
        """Handle Ctrl-C in place of asyncio, whose handler does not interrupt a read that waits for a line."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _next(self) -> _Event | None:
        self._reading = True
        try:
            if self._interrupted:
                raise KeyboardInterrupt
            return next(self._events, None)
        finally:
            self._reading = False

    def _interrupt(self, *_: object) -> None:
        self._interrupted = True
        if self._reading:
            raise KeyboardInterrupt


def _events(log: Iterable[bytes]) -> Iterator[_Event]:
    for number, line in enumerate(log, 1):
        if not line.strip():
            continue
        try:
            event: object = json.loads(line.strip())
        except RecursionError:
            raise _LineError(f"{number}: The line is nested too deeply.") from None
        except json.JSONDecodeError as error:
            raise _LineError(f"{number}: The line is not JSON: {error.msg} at character {error.colno}.") from None
        except ValueError as error:
            raise _LineError(f"{number}: The line cannot be read: {error}.") from None
        if not isinstance(event, dict):
            raise _LineError(f"{number}: The line is not a JSON object.")
        yield cast("_Event", event)


async def _print(chunks: AsyncGenerator[Chunk, None], output: _Output) -> None:
    reader = MessageReader()
    async with aclosing(chunks):
        async for chunk in chunks:
            match output:
                case "sse":
                    _write(encode_frame(chunk))
                case "chunks":
                    _write(encode_chunk(chunk) + b"\n")
                case "message":
                    reader.apply(chunk)
    if output == "sse":
        _write(DONE)
    elif output == "message":
        _write(msgspec.json.format(msgspec.json.encode(reader.message), indent=2) + b"\n")


def _write(line: bytes) -> None:
    """Print at once, since the next event may take its time."""
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
