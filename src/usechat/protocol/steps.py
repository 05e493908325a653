"""When a step of a message begins and ends, while the message is written."""

from collections.abc import Iterator
from typing import Final

from usechat.protocol.chunks import (
    Chunk,
    FinishStep,
    StartStep,
    ToolInputAvailable,
    ToolInputError,
    ToolInputStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from usechat.protocol.closing import closing_parts
from usechat.protocol.lanes import Lanes
from usechat.protocol.state import StreamState
from usechat.protocol.tables import UNFINISHED

__all__ = ["Steps"]

_DECIDES: Final = frozenset[type[Chunk]](
    (
        StartStep,
        ToolInputStart,
        ToolInputAvailable,
        ToolInputError,
        ToolOutputAvailable,
        ToolOutputError,
        ToolOutputDenied,
    )
)


class Steps:
    """Says when a new step is due: after results, or because somebody asked for one, but never while an input streams.

    Its methods give the chunks to write; the state has to take each of them before the next is made.
    """

    def __init__(self, state: StreamState, lanes: Lanes) -> None:
        self._state = state
        self._lanes = lanes
        self._asked = False
        self.due = state.has_results()

    def after(self, chunk: Chunk) -> None:
        """See whether a step is due now that the state has taken this chunk."""
        if type(chunk) in _DECIDES:
            self._consider()

    def ask(self) -> None:
        """Let a step be due as soon as one may begin, unless the current one has nothing to show yet."""
        self._asked = self._state.shown == self._state.step or self._state.phase != "step"
        self._consider()

    def before_content(self) -> Iterator[Chunk]:
        """Begin a step where one is due or none is open."""
        return self.next_step() if self.due else self.before_part()

    def before_part(self) -> Iterator[Chunk]:
        """Begin a step where none is open, for a part that may also stand behind results."""
        # The results of a continued message's open calls belong before its next step.
        between = self._state.phase in ("new", "open") and not (self._state.text or self._state.reasoning)
        if between and not self._state.open_here():
            yield StartStep()

    def next_step(self) -> Iterator[Chunk]:
        """End all parts and the current step, and begin another."""
        yield from self._lanes.leave_all()
        yield from closing_parts(self._state)
        if self._state.phase == "step":
            yield FinishStep()
        self._asked = False
        yield StartStep()

    def _consider(self) -> None:
        streaming = any(call.state in UNFINISHED for call in self._state.here)
        self.due = not streaming and (self._asked or self._state.has_results())
