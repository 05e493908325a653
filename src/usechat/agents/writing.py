"""What an agent writes with: the methods of `MessageWriter`, for any thread and at once."""

from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from usechat.protocol.chunks import Chunk, FinishReason
from usechat.turns.output import Output

__all__ = ["ChatWriter"]

_T = TypeVar("_T")


class ChatWriter:
    """Writes to the turn's message. After the end of the turn its methods do nothing.

    What is illegal where it is written raises `LocalProtocolError`. What is None is left out.
    """

    __slots__ = ("_output",)

    def __init__(self, output: Output) -> None:
        self._output = output

    def text(self, delta: str, lane: str = "") -> None:
        """Add to the lane's text."""
        self._output.say(self._output.writer.text, delta, lane)

    def reasoning(self, delta: str, lane: str = "") -> None:
        """Add to the lane's reasoning."""
        self._output.say(self._output.writer.reasoning, delta, lane)

    def end_part(self, *, lane: str = "") -> None:
        """End the lane's open text or reasoning, so that what follows is a part of its own."""
        self._output.say(self._output.writer.end_part, lane=lane)

    def tool_input_start(
        self,
        call_id: str,
        name: str,
        *,
        lane: str = "",
        dynamic: bool = False,
        provider_executed: bool | None = None,
        title: str | None = None,
    ) -> None:
        """Begin a call whose input is streamed."""
        self._output.say(
            self._output.writer.tool_input_start,
            call_id,
            name,
            lane=lane,
            dynamic=dynamic,
            provider_executed=_or_unset(provider_executed),
            title=_or_unset(title),
        )

    def tool_input_delta(self, call_id: str, delta: str) -> None:
        """Add to the JSON text of a call's input."""
        self._output.say(self._output.writer.tool_input_delta, call_id, delta)

    def tool_input(
        self,
        call_id: str,
        name: str,
        value: Any,
        *,
        lane: str = "",
        dynamic: bool = False,
        provider_executed: bool | None = None,
        title: str | None = None,
    ) -> None:
        """The whole input of a call, whether its beginning was streamed or not."""
        self._output.say(
            self._output.writer.tool_input,
            call_id,
            name,
            value,
            lane=lane,
            dynamic=dynamic,
            provider_executed=_or_unset(provider_executed),
            title=_or_unset(title),
        )

    def tool_input_error(
        self, call_id: str, name: str, value: Any, error_text: str, *, lane: str = "", dynamic: bool = False
    ) -> None:
        """An input that the tool could not be called with; `value` is what was given, of whatever shape."""
        write = self._output.writer.tool_input_error
        self._output.say(write, call_id, name, value, error_text, lane=lane, dynamic=dynamic)

    def tool_output(self, call_id: str, output: Any, *, preliminary: bool = False) -> None:
        """The result of a call; a preliminary one is replaced by the next."""
        self._output.say(self._output.writer.tool_output, call_id, output, preliminary=preliminary)

    def tool_error(self, call_id: str, error_text: str) -> None:
        """The failure of a call; the user sees the text."""
        self._output.say(self._output.writer.tool_error, call_id, error_text)

    def tool_denied(self, call_id: str) -> None:
        """The call is not carried out: after the user's refusal, or, as an error, by a decision of the server."""
        self._output.say(self._output.writer.tool_denied, call_id)

    def approval_request(
        self,
        call_id: str,
        *,
        approval_id: str | None = None,
        reason: str | None = None,
        signature: str | None = None,
    ) -> None:
        """Ask the user whether the call may be carried out."""
        write = self._output.writer.approval_request
        self._output.say(
            write, call_id, approval_id=approval_id, reason=_or_unset(reason), signature=_or_unset(signature)
        )

    def source_url(self, url: str, *, title: str | None = None, source_id: str | None = None) -> None:
        """A page that the answer is taken from."""
        self._output.say(self._output.writer.source_url, url, title=_or_unset(title), source_id=source_id)

    def source_document(
        self, title: str, media_type: str, *, filename: str | None = None, source_id: str | None = None
    ) -> None:
        """A document that the answer is taken from."""
        write = self._output.writer.source_document
        self._output.say(write, title, media_type, filename=_or_unset(filename), source_id=source_id)

    def file(self, url: str, media_type: str) -> None:
        """A file, by its address or as a data URL."""
        self._output.say(self._output.writer.file, url, media_type)

    def data(
        self,
        name: str,
        value: Any,
        *,
        id: str | None = None,  # noqa: A002
        transient: bool = False,
    ) -> None:
        """Data of the app's own, as `data-<name>`; with an id it replaces the part that has the same one."""
        self._output.say(self._output.writer.data, name, value, id=_or_unset(id), transient=transient)

    def metadata(self, value: Any) -> None:
        """Merge an object into the message's metadata."""
        self._output.say(self._output.writer.metadata, value)

    def step(self) -> None:
        """Begin a new step, as soon as no tool input is streaming."""
        self._output.say(self._output.writer.step)

    def send(self, chunk: Chunk) -> None:
        """Write a chunk as it is, with its values made plain."""
        self._output.say(self._output.writer.send, chunk)

    def finish(self, reason: FinishReason = "stop", metadata: Any = None) -> None:
        """End the message; with `tool-calls`, calls that wait for the browser or for an approval stay open."""
        self._output.say(self._output.writer.finish, reason, _or_unset(metadata))

    def abort(self, reason: str | None = None) -> None:
        """End the message because somebody stopped it."""
        self._output.say(self._output.writer.abort, _or_unset(reason))

    def fail(self, error_text: str) -> None:
        """End the message with an error, whose text the user sees."""
        self._output.say(self._output.writer.fail, error_text)


def _or_unset(value: _T | None) -> _T | UnsetType:
    return UNSET if value is None else value
