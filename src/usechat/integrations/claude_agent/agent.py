"""The Claude Agent SDK: drives `ClaudeAgentOptions` by the SDK's client, one connection to its CLI per turn."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid4

import msgspec

from usechat.errors import AgentError, RequestError
from usechat.extras import missing
from usechat.integrations.claude_agent.approvals import Approve, Gate
from usechat.integrations.claude_agent.translator import ClaudeTranslator, kind_of, raw_of
from usechat.models import to_anthropic
from usechat.models.decoders import field_of
from usechat.protocol.model_messages import to_model_messages
from usechat.turns.chat import Chat
from usechat.turns.pending import PendingTurn

__all__ = ["ClaudeAgent"]

_Block: TypeAlias = dict[str, Any]

_FLOOR: Final = (0, 2, 150)
_TOO_OLD: Final = (
    "ClaudeAgent needs claude-agent-sdk 0.2.150 or newer, since older ones read files that a user's message names as "
    "@path. Install it with: pip install -U 'usechat[claude-agent]'"
)
_NOT_OPEN: Final = "This answers no approval that is open."
_GO_ON: Final = "Continue from where you left off."
_SO_FAR: Final = "This conversation began elsewhere. Its messages so far, as JSON of the Messages API:\n"
# How long the CLI may take to stop; it answers at once, unless it hangs.
_STOP_SECONDS: Final = 2


class ClaudeAgent:
    """Drives the Claude Agent SDK. Each chat of a user has a session of its own, which holds its history.

    `approve` names the tools that wait for the user, or is a function of a tool's name and input. Sessions are where
    the options say, on the disk or in a `session_store`; `resume`, `session_id` and the like in them are not used.
    """

    @classmethod
    def wrap(cls, thing: object) -> "ClaudeAgent | None":
        kinds = ((kind.__module__.split(".")[0], kind.__name__) for kind in type(thing).__mro__)
        return cls(thing) if ("claude_agent_sdk", "ClaudeAgentOptions") in kinds else None

    def __init__(self, options: Any, *, approve: Approve = ()) -> None:
        """Check the version of the SDK.

        Raises:
            RuntimeError: It is missing or too old.
        """
        try:
            self._sdk: Any = import_module("claude_agent_sdk")
        except ModuleNotFoundError as error:
            raise RuntimeError(missing("ClaudeAgent", error, "claude-agent")) from error
        if tuple(int(number) for number in self._sdk.__version__.split(".")[:3]) < _FLOOR:
            raise RuntimeError(_TOO_OLD)
        self._options = options
        self._approve = approve

    def translator(self, _: Chat) -> ClaudeTranslator:
        return ClaudeTranslator()

    async def admit(self, pending: PendingTurn) -> bool:
        """Whether messages of the chat are replaced.

        Raises:
            RequestError: The call that is answered does not wait.
        """
        state = pending.state
        if pending.approvals and state is not None and state["waits"] != pending.approvals[0].call_id:
            raise RequestError(_NOT_OPEN, status=409)
        return pending.edits

    async def run(self, chat: Chat) -> AsyncGenerator[Any, None]:
        """Answer the new message, or go on after the user's approval.

        Raises:
            AgentError: The session does not know the call that was approved.
        """
        session = _session_id(chat.id, chat.user)
        before: Any = chat.state
        begun, at = before is not None or bool(chat.approvals), field_of(before, "at")
        if not begun:
            await self._delete(session)
        prompt = await _prompt(chat, is_new=not begun)
        # What a regeneration or an edit goes back to, and the call that waits.
        kept: dict[str, Any] = {"at": at, "waits": None}
        # Without a history on the server nothing is kept, and each turn but an approval begins anew.
        with suppress(RuntimeError):
            chat.state = kept
        where: dict[str, Any] = {"resume": session} if begun else {"session_id": session}
        if chat.admitted and begun:
            where["resume_session_at"] = at
        approvals = chat.approvals
        while True:
            gate = Gate(self._approve, approvals)
            messages = self._connection(gate, prompt, kept, where)
            try:
                async for message in messages:
                    if not gate.has_settled or kind_of(message) == "user":
                        yield message
            finally:
                await messages.aclose()
            if not gate.has_settled:
                if approvals:
                    raise AgentError(_NOT_OPEN)
                return
            approvals = []

    async def forget(self, chat_id: str, user: str | None) -> None:
        """Delete the session of the chat."""
        await self._delete(_session_id(chat_id, user))

    async def _connection(
        self, gate: Gate, prompt: str | list[_Block], kept: dict[str, Any], where: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """The messages until the session has nothing more to do, with all that background tasks lead to."""
        sent = str(uuid4())
        client, has_ended = self._sdk.ClaudeSDKClient(self._configured(gate, where)), False
        try:
            await client.connect(_sent(prompt, sent))
            async for message in client.receive_messages():
                self._note(message, gate, kept, sent)
                yield message
            has_ended = True
        finally:
            if not has_ended:
                # `disconnect` alone (0.2.183) leaves the provider's request open until the CLI has ended.
                with suppress(Exception):
                    await asyncio.wait_for(client.interrupt(), _STOP_SECONDS)
            await client.disconnect()

    def _configured(self, gate: Gate, where: dict[str, Any]) -> Any:
        given: Mapping[str, Sequence[Any]] = self._options.hooks or {}
        hooks = {name: list(matchers) for name, matchers in given.items()}
        for name, hook in (("PreToolUse", gate.before_tool), ("UserPromptSubmit", gate.before_prompt)):
            hooks[name] = [*hooks.get(name, []), self._sdk.HookMatcher(hooks=[hook])]
        own = {"resume": None, "session_id": None, "continue_conversation": False, "fork_session": False}
        return replace(
            self._options, include_partial_messages=True, forward_subagent_text=True, hooks=hooks, **{**own, **where}
        )

    def _note(self, message: Any, gate: Gate, kept: dict[str, Any], sent: str) -> None:
        match kind_of(message):
            case "system" if field_of(message, "subtype") == "init":
                gate.learn(field_of(raw_of(message), "tools") or ())
                if not gate.has_settled:
                    kept["at"] = sent
            case "assistant" | "user" if not field_of(message, "parent_tool_use_id"):
                kept["at"] = field_of(message, "uuid") or kept["at"]
            case "result":
                kept["waits"] = field_of(field_of(message, "deferred_tool_use"), "id")
            case _:
                pass

    async def _delete(self, session: str) -> None:
        directory = None if self._options.cwd is None else str(self._options.cwd)
        if self._options.session_store is not None:
            await self._sdk.delete_session_via_store(self._options.session_store, session, directory)
        with suppress(FileNotFoundError):
            await asyncio.to_thread(self._sdk.delete_session, session, directory)


def _session_id(chat_id: str, user: str | None) -> str:
    """A session for each user and chat, so that nobody reads another's by guessing the id of a chat."""
    return str(UUID(bytes=sha256(msgspec.json.encode((user or "", chat_id))).digest()[:16], version=4))


async def _prompt(chat: Chat, *, is_new: bool) -> str | list[_Block]:
    if chat.approvals:
        return _GO_ON
    if not is_new:
        return _blocks(to_anthropic(to_model_messages([chat.messages[-1]]))["messages"])
    *before, _ = messages = to_anthropic(to_model_messages(await chat.history()))["messages"]
    so_far = [{"type": "text", "text": _SO_FAR + msgspec.json.encode(before).decode()}] if before else []
    return [*so_far, *_blocks(messages)]


def _blocks(messages: Sequence[Any]) -> list[_Block]:
    return messages[-1]["content"]


async def _sent(content: str | list[_Block], message_id: str) -> AsyncIterator[dict[str, Any]]:
    yield {
        "type": "user",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
        "uuid": message_id,
        # Else the CLI (2.1.326) reads the files that a user names as @path, and runs what begins with a slash.
        "client_composed": True,
    }
