"""Google ADK: drives an agent, an app or a runner by `Runner.run_async`, with the chat as its session."""

import copy
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from importlib import import_module
from typing import Any, Final, cast

from usechat.errors import AgentError
from usechat.extras import missing
from usechat.integrations.edits import check_edits
from usechat.integrations.google_adk.session import (
    REASON,
    Kept,
    add_what_is_missing,
    begins,
    edit,
    events_of,
    message,
    valid,
)
from usechat.integrations.google_adk.translator import ADKTranslator
from usechat.turns.chat import Chat
from usechat.turns.pending import PendingTurn

__all__ = ["ADKAgent"]

_OLDEST: Final = (2, 2)
_ANYBODY: Final = "user"
_REJECTED: Final = {"error": "This tool call is rejected."}
_REFUSED: Final = "The user refused this call."
_KINDS: Final = {
    ("google.adk.agents.base_agent", "BaseAgent"): "agent",
    ("google.adk.apps.app", "App"): "app",
    ("google.adk.runners", "Runner"): "runner",
}


def _kind(thing: object) -> str:
    """What of ADK it is, by the names of its classes; "" if it is nothing."""
    if isinstance(thing, type):
        return ""
    return next(
        (_KINDS[key] for kind in type(thing).__mro__ if (key := (kind.__module__, kind.__name__)) in _KINDS), ""
    )


class ADKAgent:
    """Drives an agent, an app or a runner of ADK.

    `session_service` keeps the sessions, each under the id of its chat and its user. Without one, and without a runner,
    a session is kept with its chat, in `chat.state`. `app_name` is the name that sessions belong to.
    """

    @classmethod
    def wrap(cls, thing: object) -> "ADKAgent | None":
        return cls(thing) if _kind(thing) else None

    def __init__(self, agent: Any, *, session_service: Any = None, app_name: str | None = None) -> None:
        """Make a runner.

        Raises:
            RuntimeError: ADK is missing or too old.
            TypeError: It is neither an agent nor an app nor a runner.
        """
        kind = _kind(agent)
        if not kind:
            raise TypeError(f"{type(agent).__name__} is not an agent of Google ADK: give an agent, an App or a Runner.")
        _check_version()
        if kind == "runner":
            session_service = session_service or agent.session_service
            runner = copy.copy(agent)
            runner.session_service = session_service
            runner.app_name = app_name or agent.app_name
        else:
            name = app_name or agent.name
            service = session_service or _load("sessions").InMemorySessionService()
            runner = _load("runners").Runner(app_name=name, session_service=service, **{kind: agent})
        plugins = [*runner.plugin_manager.plugins, _refusals()]
        runner.plugin_manager = _load("plugins.plugin_manager").PluginManager(plugins=plugins)
        self._runner = runner
        self._is_mine = kind != "runner"
        self._keeps_sessions = session_service is not None
        self._structured = frozenset(_structured(runner.agent))

    def translator(self, chat: Chat) -> ADKTranslator:
        parts = () if chat.continues is None else chat.continues.parts
        others = [part["data"]["name"] for part in parts if part["type"] == "data-subagent"]
        return ADKTranslator(others, self._structured)

    async def admit(self, pending: PendingTurn) -> None:
        """Check the answers to approvals.

        Raises:
            RequestError: An edit is no object.
        """
        check_edits(pending.approvals, also="payload")

    async def run(self, chat: Chat) -> AsyncGenerator[Any, None]:
        """Run the agent with the new message, or let it go on with the user's answers.

        Raises:
            AgentError: There is nothing to answer.
        """
        if chat.continues is None and chat.messages[-1].role != "user":
            raise AgentError("There is no message to answer.")
        runner = self._runner
        if not self._keeps_sessions:
            runner = copy.copy(runner)
            runner.session_service = _load("sessions").InMemorySessionService()
        events = await self._prepare(runner, chat)
        given = message(chat, events)
        sessions = None if self._keeps_sessions else runner.session_service.sessions[runner.app_name]
        kept = Kept(chat, events if sessions else None)
        config = _load("agents.run_config")
        stream = runner.run_async(
            user_id=chat.user or _ANYBODY,
            session_id=chat.id,
            new_message=import_module("google.genai.types").Content.model_validate(given),
            run_config=config.RunConfig(streaming_mode=config.StreamingMode.SSE),
        )
        async with aclosing(stream) as said:
            async for event in said:
                kept.hear(event)
                if sessions:
                    kept.add(sessions[chat.user or _ANYBODY][chat.id].events)
                yield event

    async def forget(self, chat_id: str, user: str | None) -> None:
        """Delete the session of the chat."""
        if self._keeps_sessions:
            runner = self._runner
            await runner.session_service.delete_session(
                app_name=runner.app_name, user_id=user or _ANYBODY, session_id=chat_id
            )

    async def aclose(self, grace: float) -> None:
        """Close the toolsets and plugins, unless the runner is the user's."""
        if self._is_mine:
            await self._runner.close()

    async def _prepare(self, runner: Any, chat: Chat) -> Sequence[Any]:
        """Bring the session to where this turn begins; its events.

        A regeneration or an edit cuts it back. A session that is lost or was left behind is made anew of the messages.
        """
        service, history = runner.session_service, await chat.history()
        state = cast("dict[str, Any]", chat.state) if isinstance(chat.state, dict) else {}
        whose = {"user_id": chat.user or _ANYBODY, "session_id": chat.id}
        place = {"app_name": runner.app_name, **whose}
        session = await service.get_session(**place) if self._keeps_sessions else None
        make = cast("Callable[[Any], Any]", _load("events").Event.model_validate)
        events = valid(session.events) if session else _read(make, state.get("events") or ())
        said = history if chat.continues is not None else history[:-1]
        wanted = sum(one.role == "user" for one in said)
        if len(found := begins(events)) > wanted:
            if session:
                before = events[found[wanted]].invocation_id
                await runner.rewind_async(**whose, rewind_before_invocation_id=before)
                session = await service.get_session(**place)
            events = valid(session.events) if session else events[: found[wanted]]
        is_lost = len(begins(events)) < wanted
        if is_lost:
            events = list(map(make, events_of(said, runner.agent.name, chat)))
        is_changed = edit(events, chat.approvals) or is_lost
        if session and is_changed:
            await service.delete_session(**place)
        new = [] if chat.continues is not None else list(map(make, add_what_is_missing(events, state.get("partial"))))
        if session is None or is_changed:
            begun = _own_state(session.state) if session else None
            session = await service.create_session(**place, state=begun)
            new = [*events, *new]
            events = []
        for event in new:
            await service.append_event(session, event)
        return [*events, *new]


def _load(module: str) -> Any:
    return import_module(f"google.adk.{module}")


def _read(make: Callable[[Any], Any], events: Iterable[Any]) -> list[Any]:
    """The events that were kept; none if another version of ADK cannot read them, so that the session is made anew."""
    try:
        return [make(event) for event in events]
    except ValueError:
        return []


def _check_version() -> None:
    try:
        version = str(_load("version").__version__)
    except ModuleNotFoundError as error:
        raise RuntimeError(missing("ADKAgent", error, "google-adk")) from error
    if tuple(int(number) for number in version.split(".")[:2]) < _OLDEST:
        raise RuntimeError(
            f"usechat needs Google ADK 2.2 or newer, and this is {version}. Install it with: "
            "pip install --upgrade 'usechat[google-adk]'"
        )


def _refusals() -> Any:
    """A plugin that tells the model why the user refused a call. ADK 2.13 only says that it is rejected."""

    async def after_tool_callback(self: Any, *, tool_context: Any, result: Any, **_: Any) -> Any:
        answer = tool_context.tool_confirmation
        if answer is None or answer.confirmed or result != _REJECTED or REASON not in (answer.payload or ()):
            return None
        reason = answer.payload[REASON]
        return {"error": f"{_REFUSED} Their reason: {reason}" if reason else _REFUSED}

    base = _load("plugins.base_plugin").BasePlugin
    return type("Refusals", (base,), {"after_tool_callback": after_tool_callback})(name="usechat")


def _structured(agent: Any) -> Iterator[str]:
    """The agents whose answer is a value."""
    if getattr(agent, "output_schema", None) is not None:
        yield agent.name
    for one in getattr(agent, "sub_agents", None) or ():
        yield from _structured(one)


def _own_state(state: dict[str, Any]) -> dict[str, Any]:
    """The state of the session itself: a service also shows those of the user and of the app."""
    return {key: value for key, value in state.items() if not key.startswith(("app:", "user:", "temp:"))}
