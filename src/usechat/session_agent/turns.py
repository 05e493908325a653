"""One turn of the agent, as the frames that clients see of it."""

import asyncio
from typing import Any, Literal, TypeAlias

from usechat.ids import new_id
from usechat.session_agent.frames import DEFAULT_CHANNEL, Frame, audit_entry, present, unix_time
from usechat.session_agent.state import Prompt, SessionState, Vocabulary

__all__ = ["Turn"]

ToolStatus: TypeAlias = Literal["pending", "running", "completed", "error"]


class Turn:
    """A turn that says something. It begins lazily: the assistant's message appears with the first text or tool.

    `completes` is False for a turn whose end Agent Ops does not tell, `leaves` the status in which it leaves the
    session, `afterwards` the event that brings an unsolicited turn after it.
    """

    def __init__(self, session: SessionState, prompt: Prompt, vocabulary: Vocabulary) -> None:
        self.session = session
        self.prompt = prompt
        self.vocabulary: Vocabulary = vocabulary
        self.id = new_id()
        self.completes = True
        self.leaves: Literal["running", "hibernated", "terminated"] = "running"
        self.afterwards = ""
        self._channel = prompt.channel or DEFAULT_CHANNEL
        self._status = ""
        self._message: Frame | None = None
        self._said = ""
        self._unfinished = ""

    def status(self, status: str, detail: str | None = None) -> None:
        self._status = status
        self.session.broadcast(present(type="agentStatus", status=status, detail=detail) | self.prompt.channel)

    def begin(self) -> Frame:
        """The assistant's message, which is told to everybody when it is first needed."""
        if self._message is None:
            self._message = {"id": self.id, "role": "assistant", "content": "", "parts": [], "createdAt": unix_time()}
            self._message |= self._channel
            created = {"type": "message.create", "turnId": self.id, **self._channel, "opencodeSessionId": "ses_1"}
            self._emit(created, {"type": "message", "data": self._message})
            self.session.keep(self._message)
        return self._message

    async def text(self, *pieces: str, kept: bool = True) -> None:
        """Say pieces of text, one delta each; what is not kept is in the deltas only."""
        if self._status != "streaming":
            self.status("streaming")
        self.begin()
        for piece in pieces:
            self._said += piece if kept else ""
            self._unfinished += piece if kept else ""
            chunk = {"type": "chunk", "content": piece, "messageId": self.id, **self._channel}
            self._emit({"type": "message.part.text-delta", "turnId": self.id, "delta": piece}, chunk)
            await self.pause()

    async def tool(
        self,
        call: str,
        name: str,
        status: ToolStatus,
        args: Any = None,
        *,
        result: Any = None,
        error: str | None = None,
        quiet: bool = False,
    ) -> None:
        """Say how a tool call stands; `quiet` leaves out the agent's status."""
        message = self.begin()
        if status in ("pending", "running") and not quiet:
            self.status("tool_calling", name)
        self._end_text(message)
        part = present(callId=call, toolName=name, status=status, args=args, result=result, error=error)
        parts: list[Frame] = message["parts"]
        known = next((index for index, other in enumerate(parts) if other.get("callId") == call), None)
        if known is None:
            parts.append({"type": "tool-call", **part})
        else:
            parts[known] = {"type": "tool-call", **part}
        message["content"] = self._said
        self._emit({"type": "message.part.tool-update", "turnId": self.id, **part}, self._updated(message))
        await self.pause()

    def finish(self, reason: str = "end_turn", *, error: str | None = None, final: str | None = None) -> None:
        """End the message, as Agent Ops does it: each text part becomes the text after the last tool."""
        message = self.begin()
        final = final or self._unfinished or None
        self._end_text(message)
        parts: list[Frame] = message["parts"]
        if final is not None:
            if not self._said:
                parts.append({"type": "text", "streaming": False})
            for part in parts:
                if part["type"] == "text":
                    part["text"] = final
            message["content"] = final
        parts.append({"type": "finish", "reason": reason})
        if error is not None:
            parts.append({"type": "error", "message": error})
        finalize = present(type="message.finalize", turnId=self.id, reason=reason, finalText=final, error=error)
        self._emit(finalize, self._updated(message))

    def fail(self, text: str) -> None:
        """Tell an error of the agent, outside of any message."""
        self.session.broadcast({"type": "error", "messageId": new_id(), "error": text, **self.prompt.channel})
        self.session.audit(audit_entry("agent.error", text))

    async def ask(self, text: str, options: list[str]) -> str | None:
        """Ask the users, and give the first answer; None if it does not come in time."""
        question = self.session.ask(text, options, self.prompt.channel)
        if self.prompt.author is not None:
            toast = {"title": "Agent question", "description": f"Agent question: {text}", "variant": "warning"}
            self.session.tell(self.prompt.author, {"type": "toast", **toast})
        try:
            async with asyncio.timeout(self.session.settings.question_seconds):
                return await question.answer
        except TimeoutError:
            self.session.broadcast({"type": "status", "data": {"questionExpired": question.id}})
            return None
        finally:
            self.session.questions.pop(question.id, None)

    def begin_again(self) -> None:
        """Leave the message as it is, and say what follows in a new one."""
        self.id = new_id()
        self._message = None
        self._status = self._said = self._unfinished = ""

    async def pause(self, seconds: float | None = None) -> None:
        """Wait for the pace of the agent, and for sockets that are slow."""
        await asyncio.sleep(self.session.settings.pace if seconds is None else seconds)
        await self.session.room()

    def aborted(self) -> None:
        """The runner confirms that the turn was aborted; its message never gets a finish part."""
        if self.vocabulary != "client":
            self.session.broadcast({"type": "aborted"})
        self.status("idle")
        if self.vocabulary != "v2":
            self.session.broadcast({"type": "status", "data": {"runnerBusy": False, "aborted": True}})

    def completed(self) -> None:
        """The end of the prompt, which is told whatever became of it."""
        if self.vocabulary != "client":
            self.session.broadcast({"type": "complete"})
        if self.vocabulary != "v2":
            self.session.audit(audit_entry("agent.turn_complete", "Agent turn completed"))

    def _end_text(self, message: Frame) -> None:
        if self._unfinished:
            # All that was said so far, not the text after the last tool: so does Agent Ops.
            message["parts"].append({"type": "text", "text": self._said, "streaming": False})
            message["content"] = self._said
            self._unfinished = ""

    def _updated(self, message: Frame) -> Frame:
        fields = ("id", "role", "content", "parts", "channelType", "channelId")
        return {"type": "message.updated", "data": {name: message[name] for name in fields}}

    def _emit(self, v2: Frame, client: Frame) -> None:
        if self.vocabulary != "client":
            self.session.broadcast(v2)
        if self.vocabulary != "v2":
            self.session.broadcast(client)
