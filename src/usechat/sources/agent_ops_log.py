"""Agent Ops: a log of a session's frames, of which the turn of one prompt is shown."""

from contextlib import suppress
from typing import Any, cast

from usechat.errors import MappingError
from usechat.protocol.chunks import Chunk
from usechat.protocol.writer import MessageWriter
from usechat.sources.agent_ops import AgentOpsMapper
from usechat.sources.agent_ops_frames import Frame, channel_of
from usechat.sources.agent_ops_options import AgentOpsOptions
from usechat.sources.agent_ops_turns import PromptTracker

__all__ = ["AgentOpsLog"]


class AgentOpsLog:
    """Maps the lines of a log: frames as they are, or `{"dir": "recv" | "send" | "note", "frame": …}`.

    The turn is that of the first prompt that the log sends, or, if it sends none, the first one on the channel.
    """

    def __init__(self, writer: MessageWriter, options: AgentOpsOptions) -> None:
        self._mapper = AgentOpsMapper(writer, options)
        self._channel = options.channel
        self._tracker: PromptTracker | None = None
        # What was received before it is known whether the log sends a prompt.
        self._before: list[Frame] = []

    def map(self, event: dict[str, Any]) -> list[Chunk]:
        """The chunks of one line.

        Raises:
            MappingError: the line is of no use.
        """
        if "dir" not in event:
            return self._received(event, self._tracker or self._first_turn())
        frame = event.get("frame")
        match event["dir"]:
            case "note":
                return []
            case "recv" if isinstance(frame, dict):
                if self._tracker is not None:
                    return self._received(cast("Frame", frame), self._tracker)
                self._before.append(cast("Frame", frame))
                return []
            case "send" if isinstance(frame, dict):
                if self._tracker is None and cast("Frame", frame).get("type") == "prompt":
                    self._prompt(cast("Frame", frame))
                return []
            case _:
                raise MappingError("A line of an Agent Ops log has no usable `dir` and `frame`.")

    def end(self) -> list[Chunk]:
        """End the message because the log has no more lines; nothing if it has ended."""
        chunks: list[Chunk] = []
        if self._tracker is None:
            tracker = self._first_turn()
            for frame in self._before:
                with suppress(MappingError):
                    chunks += self._received(frame, tracker)
        return chunks + self._mapper.end()

    def _first_turn(self) -> PromptTracker:
        self._tracker = PromptTracker(None, channel=self._channel)
        return self._tracker

    def _prompt(self, prompt: Frame) -> None:
        content = prompt.get("content")
        text = content if isinstance(content, str) else ""
        self._tracker = PromptTracker(text, channel=channel_of(prompt) or self._channel)
        for frame in self._before:
            self._tracker.see(frame)
        self._before.clear()
        self._tracker.mark_sent()

    def _received(self, frame: Frame, tracker: PromptTracker) -> list[Chunk]:
        sight = tracker.see(frame)
        return [] if sight.frame is None else self._mapper.map(sight.frame)
