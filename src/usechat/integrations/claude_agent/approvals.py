"""Asks the user before a tool runs, by hooks of the Claude Agent SDK.

A hook that defers a call ends the run. The next connection to the session begins with that call: the CLI asks the hook
again, and then goes on with a prompt of its own. Here that connection only settles the call, and the CLI's prompt is
blocked, because the CLI (2.1.326) may tell the model that the call has no result if other calls stood beside it. The
connection after it reads everything from the session.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from usechat.integrations.claude_agent.translator import ToolNames
from usechat.turns.chat import Approval

__all__ = ["Approve", "Gate"]

_log = logging.getLogger("usechat")

Approve: TypeAlias = Collection[str] | Callable[[str, Any], Any]
"""The names of the tools that wait for the user, or a function of a tool's name and input that says whether it does."""

_ONE_AT_A_TIME: Final = (
    "This call was not carried out: another call of the same message waits for the user's approval. Make this call "
    "again, alone, once that one is settled."
)
_IN_SUB_AGENT: Final = (
    "This call was not carried out: it needs the user's approval, and only the main agent can ask for that. Report "
    "what you wanted to do, so that the main agent can make the call."
)
_WENT_ON: Final = "This call was not carried out: the user approved nothing, and went on with another message."
_UNDECIDED: Final = "This call was not carried out: whether it needs the user's approval could not be decided."
_REFUSED: Final = "The user refused this call."
# What the CLI says in the user's name when it goes on after a deferred call.
_OWN_PROMPT: Final = "Continue from where you left off."


class Gate:
    """The hooks of one connection; `said` is what the user says in it."""

    def __init__(self, approve: Approve, approvals: Sequence[Approval] = (), *, said: str = "") -> None:
        self._approve = approve
        # A user who says the same is not to be blocked.
        self._blocks = said.strip() != _OWN_PROMPT
        self._approvals = {approval.call_id: approval for approval in approvals}
        self._names = ToolNames()
        # Whether a prompt has been taken, so that the calls that follow are new.
        self._has_begun = False
        self._has_blocked = False
        self._is_deferred = False
        self._asked = asyncio.Event()
        # Set when the prompt that was sent has its result.
        self.answered = asyncio.Event()

    @property
    def has_settled(self) -> bool:
        """Whether the CLI has asked about a call that was deferred before."""
        return self._asked.is_set()

    async def is_asked(self, seconds: float) -> bool:
        """Wait until the CLI asks about a call that was deferred before."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._asked.wait(), seconds)
        return self.has_settled

    def learn(self, tools: Sequence[str]) -> None:
        """Take in which tools there are."""
        self._names.learn(tools)

    def take_result(self) -> None:
        """Take note of a result, which may be that of the CLI's own prompt."""
        if self._has_begun or not self._has_blocked:
            self.answered.set()

    async def before_tool(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """Decide on a call."""
        if not self._has_begun:
            self._asked.set()
            return self._settle(call_id or "")
        name = self._names.short(given["tool_name"])
        try:
            waits = self._waits(name, given)
        # The CLI carries a call out if a hook fails.
        except Exception:  # noqa: BLE001
            _log.exception("`approve` failed, so the call of %s is refused", ascii(name))
            return _decided("deny", permissionDecisionReason=_UNDECIDED)
        if not waits:
            return {}
        if given.get("agent_id"):
            return _decided("deny", permissionDecisionReason=_IN_SUB_AGENT)
        if self._is_deferred:
            return _decided("deny", permissionDecisionReason=_ONE_AT_A_TIME)
        self._is_deferred = True
        return _decided("defer")

    async def before_prompt(self, given: Any, *_: Any) -> dict[str, Any]:
        """Block the CLI's own prompt."""
        if self._blocks and given["prompt"] == _OWN_PROMPT:
            self._has_blocked = True
            return {"decision": "block", "reason": "The next prompt goes on."}
        self._has_begun = True
        return {}

    def _waits(self, name: str, given: Any) -> bool:
        if callable(self._approve):
            return bool(self._approve(name, given["tool_input"]))
        return name in self._approve or given["tool_name"] in self._approve

    def _settle(self, call_id: str) -> dict[str, Any]:
        approval = self._approvals.get(call_id)
        if approval is None:
            return _decided("deny", permissionDecisionReason=_WENT_ON)
        if not approval.approved:
            reason = f"{_REFUSED} Their reason: {approval.reason}" if approval.reason else _REFUSED
            return _decided("deny", permissionDecisionReason=reason)
        match approval.extra:
            case {"input": dict()}:
                return _decided("allow", updatedInput=approval.extra["input"])
            case _:
                return _decided("allow")


def _decided(decision: str, **more: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": decision, **more}}
