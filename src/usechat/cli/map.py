"""`usechat map`: a log of events as the stream that a page would get."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, NoReturn, TypeAlias, cast

import msgspec
import typer

from usechat.errors import MappingError
from usechat.protocol.chunks import Chunk
from usechat.protocol.clients import ClientName
from usechat.protocol.codec import encode_chunk, encode_frame
from usechat.protocol.reader import MessageReader
from usechat.protocol.sse import DONE
from usechat.protocol.writer import MessageWriter
from usechat.sources import SOURCES, RunMapper
from usechat.stream import map_event

__all__ = ["map_log"]

_Output: TypeAlias = Literal["sse", "chunks", "message"]
_Batches: TypeAlias = Iterator[Iterable[Chunk]]

_NAMES: Final = ", ".join(SOURCES)
_LATE: Final = "The run had ended."


class _LineError(Exception):
    """A line of the log that is no event; the text says which and why."""


def map_log(
    source: Annotated[str, typer.Argument(help=f"Whose events they are: {_NAMES}.")],
    file: Annotated[str, typer.Argument(help="A log with a JSON object a line; - for stdin.")],
    *,
    client: Annotated[ClientName, typer.Option(help="The clients that must understand the stream.")] = "portable",
    output: Annotated[_Output, typer.Option(help="The stream, its chunks a line each, or the message.")] = "sse",
    option: Annotated[list[str], typer.Option(help="An option of the source, as name=true; repeat it for more.")] = [],  # noqa: B006
) -> None:
    """Turn a log of events into the stream that a page would get; the same log always gives the same stream."""
    numbers = count(1)
    writer = MessageWriter("message-1", new_id=lambda: f"id-{next(numbers)}", client=client)
    mapper = _mapper(source, writer, option)
    unused = Counter[str]()
    try:
        with _opened(file) as log:
            _PRINTERS[output](_mapped(log, mapper, writer, unused))
    except _LineError as error:
        typer.echo(f"{'<stdin>' if file == '-' else file}:{error}", err=True)
        raise typer.Exit(1) from None
    finally:
        for reason, times in unused.items():
            typer.echo(f"not used, {times} {'event' if times == 1 else 'events'}: {reason}", err=True)


def _mapper(source: str, writer: MessageWriter, options: list[str]) -> RunMapper[dict[str, Any]]:
    if source not in SOURCES:
        _refuse(f"There is no source {source!r:.60}: the sources are {_NAMES}.")
    try:
        return SOURCES[source](writer, dict(map(_option, options)))
    except ValueError as error:
        _refuse(str(error))


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise ValueError(f"The option {text!r:.60} must have the form name=true or name=false.") from None


def _opened(file: str) -> AbstractContextManager[BinaryIO]:
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        _refuse(f"{file} cannot be read: {error.strerror}.")


def _mapped(
    log: Iterable[bytes], mapper: RunMapper[dict[str, Any]], writer: MessageWriter, unused: Counter[str]
) -> _Batches:
    def note(error: MappingError) -> None:
        unused[str(error)] += 1

    yield writer.start()
    try:
        for event in _events(log):
            if mapper.ended:
                unused[_LATE] += 1
            yield map_event(mapper, event, note)
    except _LineError:
        yield mapper.interrupt()
        raise
    yield mapper.interrupt()


def _events(log: Iterable[bytes]) -> Iterator[dict[str, Any]]:
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
        yield cast("dict[str, Any]", event)


def _print_stream(batches: _Batches) -> None:
    for chunks in batches:
        _write(encode_frame(chunk) for chunk in chunks)
    _write([DONE])


def _print_chunks(batches: _Batches) -> None:
    for chunks in batches:
        _write(encode_chunk(chunk) + b"\n" for chunk in chunks)


def _print_message(batches: _Batches) -> None:
    reader = MessageReader()
    for chunks in batches:
        for chunk in chunks:
            reader.apply(chunk)
    _write([msgspec.json.format(msgspec.json.encode(reader.message), indent=2), b"\n"])


def _write(lines: Iterable[bytes]) -> None:
    """Print at once, since the next event may take its time."""
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()


_PRINTERS: Final[dict[_Output, Callable[[_Batches], None]]] = {
    "sse": _print_stream,
    "chunks": _print_chunks,
    "message": _print_message,
}


def _refuse(sentence: str) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(2)
