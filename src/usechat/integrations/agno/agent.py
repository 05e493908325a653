"""Agno: drives an agent or a team by its own stream of events.

What the model reads of the chat comes from one of two places. An agent with a `db` that adds its history to the context
reads its session, which is first cut back to the run that `chat.state` names: the runs after it belong to answers that
were regenerated or edited. Any other agent reads the messages of the chat, which a copy of it has as `additional_input`
for one run.

A run that waits for the user is in the session, too. Without a `db` it is in `chat.state`. Either has it without the
history, which is added again when the run goes on.
"""

import copy
import hashlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from inspect import isawaitable
from typing import Any, Final, TypeAlias
from uuid import uuid4

import msgspec

from usechat import events as e
from usechat.errors import AgentError
from usechat.extras import missing
from usechat.integrations.agno.messages import to_agno
from usechat.integrations.agno.translator import AgnoTranslator, answer_id, field, kind_of
from usechat.integrations.edits import check_edits
from usechat.turns.chat import Approval, Chat, ToolAnswer
from usechat.turns.pending import PendingTurn

__all__ = ["AgnoAgent"]

_Event: TypeAlias = Any
_Message: TypeAlias = Any

_OLDEST: Final = 3
_CLASSES: Final = (("agno.agent.agent", "Agent"), ("agno.team.team", "Team"))
_NOT_WAITING: Final = "The agent does not wait for this answer any more. Send a new message."
_NO_DATABASE: Final = (
    "This Agno agent waits for the user, and nothing keeps its run until the answer: give the agent a db, or serve it "
    "with chats in memory or in a database."
)
_SAME_IDS: Final = "Two calls have the same id, so neither can be answered. Send your message again."
_QUESTIONS: Final = ("get_user_input", "ask_user")
_REFUSED: Final = "The user refused this call."


class AgnoAgent:
    """Drives an agent or a team. Each chat of a user is a session of its own in the agent's `db`, if it has one."""

    @classmethod
    def wrap(cls, thing: object) -> "AgnoAgent | None":
        names = {(kind.__module__, kind.__name__) for kind in type(thing).__mro__}
        return cls(thing) if names.intersection(_CLASSES) else None

    def __init__(self, agent: Any) -> None:
        """Prepare to run it.

        Raises:
            ImportError: Agno is too old, or not installed.
        """
        try:
            found = version("agno")
        except PackageNotFoundError as error:
            raise ImportError(missing("AgnoAgent", error, "agno")) from error
        if int(found.partition(".")[0]) < _OLDEST:
            raise ImportError(
                f"AgnoAgent needs agno 3.0 or newer, and {found} is here. Install it with: pip install 'usechat[agno]'"
            )
        if agent.id is None:
            # Each copy would make an id of its own.
            agent.set_id()
        self._agent = agent

    def translator(self, chat: Chat) -> AgnoTranslator:
        ended = (_ended(answer) for answer in chat.approvals)
        return AgnoTranslator([end for end in ended if end is not None])

    async def admit(self, pending: PendingTurn) -> None:
        """Check the answers to approvals.

        Raises:
            RequestError: An edit is no object.
        """
        check_edits(pending.approvals)

    async def run(self, chat: Chat) -> AsyncGenerator[_Event, None]:
        """Run the agent with the new message, or let its run go on with the user's answers.

        Raises:
            AgentError: it waits for no such answer.
            RuntimeError: the run failed, or nothing can keep it until the user's answer.
        """
        agent = copy.copy(self._agent)
        run_id, events = await (self._begin(agent, chat) if chat.continues is None else self._go_on(agent, chat))
        # Cancelling the task, or closing the stream, cancels the run and closes the provider's request.
        async with aclosing(events):
            async for event in events:
                if field(event, "event") is None:
                    # The last one is the run itself.
                    self._keep_paused(chat, event)
                    continue
                if kind_of(event) == "RunError" and event.run_id == run_id:
                    raise RuntimeError(f"Agno: {event.content!s:.1000}")
                yield event

    async def forget(self, chat_id: str, user: str | None) -> None:
        """Delete the session of the chat."""
        if self._agent.db is not None:
            await self._agent.adelete_session(_session_id(chat_id, user))

    async def _begin(self, agent: Any, chat: Chat) -> tuple[str, Any]:
        messages = to_agno(await chat.history())
        if not messages or messages[-1].role != "user":
            raise AgentError("There is no message to answer.")
        *before, asked = messages
        if await self._has_session(chat):
            agent.add_history_to_context = True
        else:
            agent.add_history_to_context = False
            agent.additional_input = [*(agent.additional_input or ()), *before]
        run_id = str(uuid4())
        _set_state(chat, {"run_id": run_id})
        media = {name: getattr(asked, name) or None for name in ("images", "audio", "videos", "files")}
        return run_id, agent.arun(
            asked.content,
            run_id=run_id,
            session_id=_session_id(chat.id, chat.user),
            user_id=chat.user,
            stream=True,
            stream_events=True,
            yield_run_output=True,
            **media,
        )

    async def _go_on(self, agent: Any, chat: Chat) -> tuple[str, Any]:
        run = await self._paused(chat)
        _answer(run.requirements or (), chat.approvals, chat.tool_results)
        if not await self._has_session(chat):
            agent.add_history_to_context = False
            messages = await chat.history()
            asked = max((index for index, message in enumerate(messages) if message.role == "user"), default=0)
            said: list[_Message] = run.messages or []
            begin = sum(message.role == agent.system_message_role for message in said[:1])
            begin += len(agent.additional_input or ())
            run.messages = [*said[:begin], *to_agno(messages[:asked]), *said[begin:]]
        _set_state(chat, {"run_id": run.run_id})
        return run.run_id, agent.acontinue_run(
            run, requirements=run.requirements, stream=True, stream_events=True, yield_run_output=True
        )

    async def _has_session(self, chat: Chat) -> bool:
        """Whether the session of the agent has the chat up to here, and nothing else; the model reads it then."""
        agent = self._agent
        # Agno 3.1 makes memories of all additional input, each time.
        if agent.db is None or not (agent.add_history_to_context or field(agent, "update_memory_on_run")):
            return False
        if not _set_state(chat, chat.state):
            return False
        runs = await self._runs(chat)
        last = field(chat.state, "run_id")
        ids = [run.run_id for run in runs]
        if last is not None and last not in ids:
            return False
        kept = set(ids[: ids.index(last) + 1] if last is not None else ())
        # The runs of members come before or after the team's.
        kept.update(run.run_id for run in runs if run.parent_run_id in kept)
        if after := [run_id for run_id in ids if run_id not in kept]:
            deleted = agent.db.delete_runs(after)
            if isawaitable(deleted):
                await deleted
        # Agno's history leaves out runs that wait, failed or were stopped, and what their tools have done.
        ended = (run for run in runs if run.run_id in kept and not run.parent_run_id)
        if any(run.status != "COMPLETED" for run in ended if chat.continues is None or run.run_id != last):
            return False
        return last is not None or len(chat.messages) == 1

    async def _runs(self, chat: Chat) -> list[Any]:
        session = await self._agent.aget_session(_session_id(chat.id, chat.user), chat.user)
        return [] if session is None else session.runs or []

    async def _paused(self, chat: Chat) -> Any:
        """The run that waits for these answers."""
        answered = {answer.call_id for answer in (*chat.approvals, *chat.tool_results)}
        if (kept := field(chat.state, "paused")) is not None:
            # It keeps parts of what it is made of.
            runs = [self._run_class().from_dict(copy.deepcopy(kept))]
        else:
            runs = [] if self._agent.db is None else await self._runs(chat)
        for run in reversed(runs):
            if answered & {answer_id(requirement) for requirement in run.requirements or ()}:
                _check_ids(run)
                # Agno shares the runs of a session between those who read it.
                return _joined(copy.deepcopy(run))
        raise AgentError(_NOT_WAITING)

    def _run_class(self) -> Any:
        if any(kind.__name__ == "Team" for kind in type(self._agent).__mro__):
            return import_module("agno.run.team").TeamRunOutput
        return import_module("agno.run.agent").RunOutput

    def _keep_paused(self, chat: Chat, run: Any) -> None:
        if run.status != "PAUSED" or self._agent.db is not None:
            return
        kept = msgspec.to_builtins(run.to_dict(), str_keys=True, enc_hook=str)
        kept["messages"] = [message for message in kept.get("messages") or () if not message.get("from_history")]
        for name in ("events", "additional_input", "metrics"):
            kept.pop(name, None)
        if not _set_state(chat, {"run_id": run.run_id, "paused": kept}):
            raise RuntimeError(_NO_DATABASE)


def _session_id(chat_id: str, user: str | None) -> str:
    """A session for each user and chat, so that nobody reads another's by guessing the id of a chat."""
    return hashlib.sha256(msgspec.json.encode((user or "", chat_id))).hexdigest()


def _set_state(chat: Chat, state: Any) -> bool:
    """Set the state of the chat; whether something keeps it."""
    try:
        chat.state = state
    except RuntimeError:
        return False
    return True


def _check_ids(run: Any) -> None:
    """Refuse a run in which two calls have the same id: the user has seen only one of them.

    Raises:
        AgentError: They have.
    """
    for ids in (list(map(answer_id, run.requirements or ())), [tool.tool_call_id for tool in run.tools or ()]):
        if len(set(ids)) < len(ids):
            raise AgentError(_SAME_IDS)


def _joined(run: Any) -> Any:
    """The run with one object for each call: Agno 3.1 reads a call from `tools` and from `requirements`."""
    tools = {tool.tool_call_id: tool for tool in run.tools or ()}
    for requirement in run.requirements or ():
        if not requirement.member_run_id:
            requirement.tool_execution = tools.get(requirement.tool_execution.tool_call_id, requirement.tool_execution)
    return run


def _answer(requirements: Iterable[Any], approvals: Iterable[Approval], results: Iterable[ToolAnswer]) -> None:
    """Give the run what the user and the page have answered.

    Raises:
        AgentError: an answer is missing.
    """
    decided, returned = {one.call_id: one for one in approvals}, {one.call_id: one for one in results}
    for requirement in requirements:
        call_id, tool = answer_id(requirement), requirement.tool_execution
        if (result := returned.get(call_id)) is not None and requirement.needs_external_execution:
            output = result.output if result.error is None else result.error
            is_text = isinstance(output, str) and output
            requirement.set_external_execution_result(output if is_text else msgspec.json.encode(output).decode())
            tool.tool_call_error = result.error is not None
        elif (approval := decided.get(call_id)) is not None:
            _decide(requirement, tool, approval)
        if not requirement.is_resolved():
            raise AgentError(f"The call of {tool.tool_name} still waits for an answer.")


def _ended(answer: Approval) -> e.ToolDenied | e.ToolResult | None:
    """How the answer alone ends the call: it is refused, or the values of the user are its result."""
    if not answer.approved:
        return e.ToolDenied(answer.call_id)
    return e.ToolResult(answer.call_id, field(answer.extra, "input")) if answer.tool in _QUESTIONS else None


def _decide(requirement: Any, tool: Any, approval: Approval) -> None:
    given = field(approval.extra, "input")
    if not approval.approved:
        # A call that waits for input cannot be refused in Agno 3.1, and one that waits for a confirmation can.
        tool.requires_user_input, tool.requires_confirmation = None, True
        requirement.user_input_schema = requirement.user_feedback_schema = None
        requirement.reject(f"{_REFUSED} Their reason: {approval.reason}" if approval.reason else _REFUSED)
        return
    if requirement.needs_confirmation:
        requirement.confirm()
    if requirement.needs_user_feedback:
        requirement.provide_user_feedback(given or {})
    elif requirement.needs_user_input:
        requirement.provide_user_input(given or {})
    elif isinstance(given, dict):
        tool.tool_args = given
