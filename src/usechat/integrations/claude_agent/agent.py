"""The Claude Agent SDK: drives `ClaudeAgentOptions` by the SDK's client, one connection to its CLI per turn."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid4

import msgspec
from msgspec import Struct

from usechat.errors import AgentError, RequestError, UsechatError
from usechat.extras import missing
from usechat.integrations.claude_agent.approvals import Approve, Gate
from usechat.integrations.claude_agent.translator import ClaudeTranslator, kind_of, raw_of
from usechat.integrations.edits import check_edits
from usechat.models import to_anthropic
from usechat.models.decoders import field_of
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import to_model_messages
from usechat.turns.chat import Chat
from usechat.turns.pending import PendingTurn

__all__ = ["ClaudeAgent", "ClaudeRunError"]

_Block: TypeAlias = dict[str, Any]

_FLOOR: Final = (0, 2, 150)
_TOO_OLD: Final = (
    "ClaudeAgent needs claude-agent-sdk 0.2.150 or newer, since older ones read files that a user's message names as "
    "@path. Install it with: pip install -U 'usechat[claude-agent]'"
)
_NOT_OPEN: Final = "This answers no approval that is open."
_GO_ON: Final = "The user has answered. Continue from where you left off."
_LOST: Final = "No conversation found"
_SO_FAR: Final = "This conversation began elsewhere. Its messages so far, as JSON of the Messages API:\n"
# How long the CLI may take to stop; it answers at once, unless it hangs.
_STOP_SECONDS: Final = 2
# How long it may take to ask about a call that waits, which it does first of all.
_ASK_SECONDS: Final = 20


class ClaudeRunError(UsechatError):
    """A run of the Claude Agent SDK failed; the words are the CLI's or the provider's, and not for the user."""


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
        """Whether the session is to go back, because messages of the chat are replaced.

        Raises:
            RequestError: The call that is answered does not wait, or an edit is no object.
        """
        check_edits(pending.approvals)
        # Without a history on the server there is no state.
        waits = [field_of(pending.state, "waits")] if pending.state is not None else []
        if waits and any(approval.call_id not in waits for approval in pending.approvals):
            raise RequestError(_NOT_OPEN, status=409)
        return pending.edits and pending.message.role == "user"

    async def run(self, chat: Chat) -> AsyncGenerator[Any, None]:
        """Answer the new message, or go on after the user's approval.

        Raises:
            AgentError: The session does not have the call that was approved.
        """
        before: Any = chat.state
        # What a regeneration or an edit goes back to, and the call that waits.
        kept: dict[str, Any] = {"at": field_of(before, "at"), "waits": None}
        # Without a history on the server nothing is kept, and each turn but an approval begins anew.
        with suppress(RuntimeError):
            chat.state = kept
        plan = await self._plan(chat, kept["at"], waits=field_of(before, "waits") is not None)
        while plan:
            connection = plan.pop(0)
            try:
                async with aclosing(self._connect(connection, kept)) as messages:
                    async for message in messages:
                        yield message
            except Exception as error:
                # The CLI deletes old sessions, and those of another machine are not here.
                if _LOST not in str(error) or "resume" not in connection.where:
                    raise
                if chat.approvals:
                    raise AgentError(_NOT_OPEN) from error
                plan = [await self._anew(chat)]
            if chat.approvals and connection.prompt is None and not connection.gate.has_settled:
                raise AgentError(_NOT_OPEN)

    async def forget(self, chat_id: str, user: str | None) -> None:
        """Delete the session of the chat."""
        await self._delete(_session_id(chat_id, user))

    async def _plan(self, chat: Chat, at: str | None, *, waits: bool) -> "list[_Connection]":
        if at is None and not chat.approvals:
            return [await self._anew(chat)]
        where = {"resume": _session_id(chat.id, chat.user)}
        if chat.admitted and at is not None:
            where["resume_session_at"] = at
        if chat.approvals:
            plan = [_Connection(where, Gate(self._approve), [_text(_GO_ON)])]
        else:
            plan = [_Connection(where, Gate(self._approve, said=chat.text), _content(chat.messages[-1:]))]
        if chat.approvals or (waits and not chat.admitted):
            # A prompt beside the call would make the CLI (2.1.326) lose its result.
            plan.insert(0, _Connection(where, Gate(self._approve, chat.approvals), None))
        return plan

    async def _anew(self, chat: Chat) -> "_Connection":
        session = _session_id(chat.id, chat.user)
        await self._delete(session)
        gate = Gate(self._approve, said=chat.text)
        return _Connection({"session_id": session}, gate, _content(await chat.history()))

    async def _connect(self, connection: "_Connection", kept: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """The messages until the session has nothing more to do, with all that background tasks lead to.

        They also end with a call that waits for the user. A background task that goes on would let the CLI forget it.
        """
        client, has_ended = self._sdk.ClaudeSDKClient(self._configured(connection)), False
        try:
            if connection.prompt is not None:
                connection.sent = str(uuid4())
                await client.connect(_sent(connection))
                async for message in client.receive_messages():
                    self._note(message, connection, kept)
                    yield message
                    if kept["waits"] is not None:
                        break
            else:
                await client.connect()
                if await connection.gate.is_asked(_ASK_SECONDS):
                    async for message in client.receive_response():
                        self._note(message, connection, kept)
                        if kind_of(message) in ("user", "result"):
                            yield message
            has_ended = True
        finally:
            if not has_ended:
                # `disconnect` alone (0.2.183) leaves the provider's request open until the CLI has ended.
                with suppress(Exception):
                    await asyncio.wait_for(client.interrupt(), _STOP_SECONDS)
            await client.disconnect()

    def _configured(self, connection: "_Connection") -> Any:
        gate = connection.gate
        given: Mapping[str, Sequence[Any]] = self._options.hooks or {}
        hooks = {name: list(matchers) for name, matchers in given.items()}
        for name, hook in (("PreToolUse", gate.before_tool), ("UserPromptSubmit", gate.before_prompt)):
            hooks[name] = [*hooks.get(name, []), self._sdk.HookMatcher(hooks=[hook])]
        own: dict[str, Any] = {"include_partial_messages": True, "forward_subagent_text": True, "hooks": hooks}
        own |= {"resume": None, "session_id": None, "continue_conversation": False, "fork_session": False}
        return replace(self._options, **(own | connection.where))

    def _note(self, message: Any, connection: "_Connection", kept: dict[str, Any]) -> None:
        match kind_of(message):
            case "system" if field_of(message, "subtype") == "init":
                connection.gate.learn(field_of(raw_of(message), "tools") or ())
                # The first one comes with the prompt, and others with what background tasks lead to.
                kept["at"], connection.sent = connection.sent or kept["at"], ""
            case "assistant" | "user" if not field_of(message, "parent_tool_use_id"):
                kept["at"] = field_of(message, "uuid") or kept["at"]
            case "result" if field_of(message, "is_error"):
                words = field_of(message, "errors") or field_of(message, "result")
                raise ClaudeRunError(f"The run failed ({field_of(message, 'subtype')}): {words!r:.500}")
            case "result":
                connection.gate.take_result()
                kept["waits"] = field_of(field_of(message, "deferred_tool_use"), "id")
            case _:
                pass

    async def _delete(self, session: str) -> None:
        directory = None if self._options.cwd is None else str(self._options.cwd)
        if self._options.session_store is not None:
            await self._sdk.delete_session_via_store(self._options.session_store, session, directory)
        with suppress(FileNotFoundError):
            await asyncio.to_thread(self._sdk.delete_session, session, directory)


class _Connection(Struct):
    """One connection to the CLI: to which session, and with which prompt; None only settles a call that waits."""

    where: dict[str, Any]
    gate: Gate
    prompt: list[_Block] | None
    # The id of the prompt, until the CLI has taken it.
    sent: str = ""


def _session_id(chat_id: str, user: str | None) -> str:
    """A session for each user and chat, so that nobody reads another's by guessing the id of a chat."""
    return str(UUID(bytes=sha256(msgspec.json.encode((user or "", chat_id))).digest()[:16], version=4))


def _content(messages: Sequence[UIMessage]) -> list[_Block]:
    """The last message, after what was said before it."""
    *before, asked = to_anthropic(to_model_messages(messages))["messages"]
    so_far = [_text(_SO_FAR + msgspec.json.encode(before).decode())] if before else []
    return [*so_far, *asked["content"]]


def _text(text: str) -> _Block:
    return {"type": "text", "text": text}


async def _sent(connection: _Connection) -> AsyncIterator[dict[str, Any]]:
    yield {
        "type": "user",
        "message": {"role": "user", "content": connection.prompt},
        "parent_tool_use_id": None,
        "uuid": connection.sent,
        # Else the CLI (2.1.326) reads the files that a user names as @path, and runs what begins with a slash.
        "client_composed": True,
    }
    # Older SDKs (0.2.150) close the CLI's input after any result, also after that of the CLI's own prompt.
    await connection.gate.answered.wait()
