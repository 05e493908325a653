"""The driver of the Claude Agent SDK, with an SDK that says what is written here; frameworks/ has the real one."""

import json
import sys
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import asdict, dataclass, field, make_dataclass
from types import ModuleType
from typing import Any

import pytest

from support.driving import Control, new_chat
from usechat.errors import AgentError, RequestError
from usechat.integrations import agent_of
from usechat.integrations.claude_agent import ClaudeAgent
from usechat.integrations.claude_agent.agent import ClaudeRunError
from usechat.integrations.claude_agent.approvals import Gate
from usechat.integrations.claude_agent.translator import ClaudeTranslator
from usechat.protocol.messages import UIMessage
from usechat.turns.chat import NO_STATE, Approval, Chat, ChatState

pytestmark = pytest.mark.anyio

Message = dict[str, Any]
INIT: Message = {"type": "system", "subtype": "init", "tools": ["mcp__shop__pay"]}
DONE: Message = {"type": "result", "subtype": "success", "is_error": False}
SAYS: Message = {"type": "assistant", "uuid": "said", "message": {"id": "m", "content": [{"text": "Hi"}]}}


@dataclass
class ClaudeAgentOptions:
    cwd: str | None = None
    hooks: dict[str, list[Any]] | None = None
    session_store: Any = None
    resume: str | None = None
    session_id: str | None = None
    resume_session_at: str | None = None
    continue_conversation: bool = False
    fork_session: bool = False
    include_partial_messages: bool = False
    forward_subagent_text: bool = False


ClaudeAgentOptions.__module__ = "claude_agent_sdk.types"


@dataclass
class HookMatcher:
    hooks: list[Any]


class SDK(ModuleType):
    """What the CLI says in each connection, and what it was told."""

    __version__ = "0.2.183"

    def __init__(self) -> None:
        super().__init__("claude_agent_sdk")
        self.says: list[list[Any]] = []
        self.clients: list[Client] = []
        self.deleted: list[Any] = []
        self.HookMatcher = HookMatcher

    def ClaudeSDKClient(self, options: ClaudeAgentOptions) -> "Client":  # noqa: N802
        self.clients.append(Client(options, self.says.pop(0)))
        return self.clients[-1]

    def delete_session(self, session: str, directory: str | None) -> None:
        self.deleted.append((session, directory))
        raise FileNotFoundError

    async def delete_session_via_store(self, store: Any, session: str, directory: str | None) -> None:
        self.deleted.append((store, session, directory))

    @property
    def prompts(self) -> list[Any]:
        return [client.prompt and client.prompt["message"]["content"] for client in self.clients]


class Client:
    """A connection; a function among its messages is a hook to be asked."""

    def __init__(self, options: ClaudeAgentOptions, says: list[Any]) -> None:
        self.options = options
        self.says = says
        self.prompt: Message | None = None
        self.did: list[str] = []
        self.answers: list[Any] = []

    async def connect(self, prompt: AsyncIterable[Message] | None = None) -> None:
        if prompt is not None:
            self.prompt = await anext(aiter(prompt))
        while self.says and callable(self.says[0]):
            self.answers.append(await self.says.pop(0)(self.options.hooks))

    async def receive_messages(self) -> AsyncGenerator[Any, None]:
        for message in self.says:
            if isinstance(message, Exception):
                raise message
            yield message

    receive_response = receive_messages

    async def interrupt(self) -> None:
        self.did.append("interrupt")

    async def disconnect(self) -> None:
        self.did.append("disconnect")


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> SDK:
    sdk = SDK()
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", sdk)
    return sdk


def user(text: str) -> UIMessage:
    return UIMessage(id="u", role="user", parts=[{"type": "text", "text": text}])


def chat_with(*messages: UIMessage, state: Any = None, **options: Any) -> Chat:
    control = Control()
    before = NO_STATE if state is None else json.dumps(state).encode()
    return new_chat(*messages, control=control, state=ChatState(control, before), **options)


async def run(agent: ClaudeAgent, chat: Chat) -> list[Any]:
    return [message async for message in agent.run(chat)]


def said(text: str) -> list[Message]:
    return [{"type": "text", "text": text}]


def asks(call_id: str) -> Any:
    """The CLI asks about a deferred call, before it takes any prompt."""

    async def ask(hooks: Any) -> Any:
        given: Message = {"tool_name": "mcp__shop__pay", "tool_input": {}}
        decided = await hooks["PreToolUse"][-1].hooks[0](given, call_id, None)
        return decided["hookSpecificOutput"]["permissionDecision"]

    return ask


def approval(call_id: str = "call", *, approved: bool = True, **more: Any) -> Approval:
    return Approval("a", call_id, "pay", {}, approved, **more)


def test_options_are_recognised(sdk: SDK) -> None:
    assert isinstance(agent_of(ClaudeAgentOptions()), ClaudeAgent)
    assert ClaudeAgent.wrap(HookMatcher([])) is None


def test_an_sdk_that_is_too_old_or_missing_is_refused(sdk: SDK, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk.__version__ = "0.2.149"
    with pytest.raises(RuntimeError, match=r"needs claude-agent-sdk 0\.2\.150 or newer"):
        ClaudeAgent(ClaudeAgentOptions())
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)
    with pytest.raises(RuntimeError, match=r"pip install 'usechat\[claude-agent\]'"):
        ClaudeAgent(ClaudeAgentOptions())


async def test_a_chat_begins_a_session_and_goes_on_with_it(sdk: SDK) -> None:
    sdk.says = [[INIT, SAYS, DONE], [INIT, {**SAYS, "uuid": "again"}, DONE]]
    hook = HookMatcher([print])
    options = ClaudeAgentOptions(cwd="shop", hooks={"PreToolUse": [hook]}, resume="another", continue_conversation=True)
    agent = ClaudeAgent(options)
    chat = chat_with(user("Hello"))
    assert await run(agent, chat) == [INIT, SAYS, DONE]
    assert chat.state == {"at": "said", "waits": None}
    second = chat_with(user("@/etc/passwd"), state=chat.state)
    await run(agent, second)
    [one, two] = [client.options for client in sdk.clients]
    assert (one.resume, two.resume, two.session_id, two.resume_session_at) == (None, one.session_id, None, None)
    assert (one.include_partial_messages, one.forward_subagent_text, one.continue_conversation) == (True, True, False)
    assert (one.hooks or {})["PreToolUse"][0] is hook
    assert sdk.deleted == [(one.session_id, "shop")]
    assert sdk.prompts == [said("Hello"), said("@/etc/passwd")]
    assert all(client.prompt and client.prompt["client_composed"] for client in sdk.clients)
    assert [client.did for client in sdk.clients] == [["disconnect"], ["disconnect"]]
    assert options.resume == "another"


async def test_each_user_has_sessions_of_their_own(sdk: SDK) -> None:
    sdk.says = [[DONE], [DONE]]
    for name in ("ann", "bob"):
        await run(ClaudeAgent(ClaudeAgentOptions()), chat_with(user("Hello"), user=name))
    assert len({client.options.session_id for client in sdk.clients}) == 2


async def test_an_edit_goes_back_to_what_was_said_before(sdk: SDK) -> None:
    sdk.says = [[DONE]]
    await run(
        ClaudeAgent(ClaudeAgentOptions()),
        chat_with(user("Edited"), state={"at": "before", "waits": "call"}, admitted=True),
    )
    [client] = sdk.clients
    assert (client.options.resume_session_at, client.prompt and client.prompt["message"]["content"]) == (
        "before",
        said("Edited"),
    )


async def test_a_lost_session_begins_anew_with_the_history(sdk: SDK) -> None:
    sdk.says = [[RuntimeError("No conversation found with session ID: x")], [DONE]]
    answer = UIMessage(id="a", role="assistant", parts=[{"type": "text", "text": "One"}])
    chat = chat_with(user("First"), answer, user("Second"), state={"at": "gone", "waits": None})
    await run(ClaudeAgent(ClaudeAgentOptions()), chat)
    history, asked = sdk.prompts[1]
    assert json.loads(history["text"].partition("\n")[2]) == [
        {"role": "user", "content": said("First")},
        {"role": "assistant", "content": said("One")},
    ]
    assert asked["text"] == "Second"
    assert sdk.clients[0].options.resume == sdk.clients[1].options.session_id


async def test_another_error_of_the_cli_is_raised(sdk: SDK) -> None:
    sdk.says = [[RuntimeError("exit code 1")]]
    with pytest.raises(RuntimeError, match="exit code 1"):
        await run(ClaudeAgent(ClaudeAgentOptions()), chat_with(user("Hi"), state={"at": "x", "waits": None}))
    assert sdk.clients[0].did == ["interrupt", "disconnect"]


async def test_without_a_history_on_the_server_each_turn_begins_anew(sdk: SDK) -> None:
    sdk.says = [[DONE]]
    await run(ClaudeAgent(ClaudeAgentOptions()), new_chat(user("First"), user("Second")))
    assert sdk.clients[0].options.session_id


async def test_an_answered_call_is_settled_before_the_run_goes_on(sdk: SDK) -> None:
    result = {"type": "user", "uuid": "paid", "message": {"content": [{"tool_use_id": "call", "content": "paid"}]}}
    sdk.says = [[asks("call"), result, INIT, DONE], [INIT, SAYS, DONE]]
    agent = ClaudeAgent(ClaudeAgentOptions(), approve=["pay"])
    chat = chat_with(user("x"), state={"at": "asked", "waits": "call"}, approvals=[approval()])
    assert await run(agent, chat) == [result, DONE, INIT, SAYS, DONE]
    assert (sdk.clients[0].answers, sdk.prompts[0]) == (["allow"], None)
    assert sdk.prompts[1] == said("The user has answered. Continue from where you left off.")


async def test_a_run_ends_with_a_call_that_waits(sdk: SDK) -> None:
    waits = {**DONE, "deferred_tool_use": {"id": "call"}}
    sdk.says = [[INIT, waits, INIT, SAYS, DONE]]
    chat = chat_with(user("Pay"))
    assert await run(ClaudeAgent(ClaudeAgentOptions(), approve=["pay"]), chat) == [INIT, waits]
    assert (chat.state["waits"], sdk.clients[0].did) == ("call", ["disconnect"])


async def test_a_call_that_was_not_answered_is_settled_before_the_next_message(sdk: SDK) -> None:
    sdk.says = [[asks("call"), DONE], [INIT, DONE]]
    agent = ClaudeAgent(ClaudeAgentOptions(), approve=["pay"])
    await run(agent, chat_with(user("Never mind"), state={"at": "asked", "waits": "call"}))
    assert (sdk.clients[0].answers, sdk.prompts) == (["deny"], [None, said("Never mind")])


async def test_an_approval_whose_session_is_lost_is_an_error(sdk: SDK, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("usechat.integrations.claude_agent.agent._ASK_SECONDS", 0)
    agent = ClaudeAgent(ClaudeAgentOptions(), approve=["pay"])
    for says in ([RuntimeError("No conversation found")], [DONE]):
        sdk.says = [[asks("call"), *says] if says[0] is not DONE else [*says]]
        with pytest.raises(AgentError, match="no approval that is open"):
            await run(agent, chat_with(user("x"), state={"at": "asked", "waits": "call"}, approvals=[approval()]))


async def test_an_answer_to_another_call_is_refused(sdk: SDK) -> None:
    pending = make_dataclass("Pending", ["approvals", "state", "edits", "message"])
    agent = ClaudeAgent(ClaudeAgentOptions())
    given = pending([approval()], {"at": "x", "waits": "another"}, False, user("x"))
    with pytest.raises(RequestError, match="no approval that is open"):
        await agent.admit(given)
    assert await agent.admit(pending([], None, True, user("x"))) is True


async def test_a_run_that_failed_raises(sdk: SDK) -> None:
    sdk.says = [[INIT, {**DONE, "is_error": True, "result": "secret"}]]
    with pytest.raises(ClaudeRunError, match="secret"):
        await run(ClaudeAgent(ClaudeAgentOptions()), chat_with(user("Hi")))


async def test_a_run_that_is_left_is_interrupted(sdk: SDK) -> None:
    sdk.says = [[INIT, SAYS, DONE]]
    messages = ClaudeAgent(ClaudeAgentOptions()).run(chat_with(user("Hi")))
    await anext(messages)
    await messages.aclose()
    assert sdk.clients[0].did == ["interrupt", "disconnect"]


async def test_a_deleted_chat_loses_its_session(sdk: SDK) -> None:
    store = object()
    await ClaudeAgent(ClaudeAgentOptions(session_store=store)).forget("c", "ann")
    [(in_store, session, _), (on_disk, _)] = sdk.deleted
    assert (in_store, session) == (store, on_disk)


async def decision(gate: Gate, call_id: str = "call", **given: Any) -> Any:
    decided = await gate.before_tool(
        {"tool_name": "mcp__shop__pay", "tool_input": {"amount": 5}, **given}, call_id, None
    )
    return decided.get("hookSpecificOutput", {})


async def begun(gate: Gate) -> Gate:
    gate.learn(["mcp__shop__pay", "Bash"])
    assert await gate.before_prompt({"prompt": "Hello"}, None, None) == {}
    return gate


async def test_of_several_calls_that_wait_one_is_asked_about() -> None:
    gate = await begun(Gate(["pay"]))
    assert (await decision(gate))["permissionDecision"] == "defer"
    refused = await decision(gate, "another")
    assert (refused["permissionDecision"], "again" in refused["permissionDecisionReason"]) == ("deny", True)
    assert await decision(gate, tool_name="Bash") == {}


async def test_a_sub_agent_cannot_ask() -> None:
    refused = await decision(await begun(Gate(["mcp__shop__pay"])), agent_id="a1")
    assert (refused["permissionDecision"], "main agent" in refused["permissionDecisionReason"]) == ("deny", True)


async def test_a_function_says_which_calls_wait() -> None:
    gate = await begun(Gate(lambda name, given: (name, given["amount"]) == ("pay", 5)))
    assert (await decision(gate))["permissionDecision"] == "defer"
    assert await decision(gate, tool_input={"amount": 4}) == {}


async def test_a_function_that_fails_lets_no_call_run() -> None:
    def approve(_: str, given: Any) -> bool:
        return given["price"] > 5

    refused = await decision(await begun(Gate(approve)))
    assert (refused["permissionDecision"], "price" in refused["permissionDecisionReason"]) == ("deny", False)


async def test_the_answer_settles_the_call() -> None:
    assert await decision(Gate([], [approval()])) == {
        "hookEventName": "PreToolUse",
        "permissionDecision": "allow",
    }
    edited = await decision(Gate([], [approval(extra={"input": {"amount": 70}})]))
    assert (edited["permissionDecision"], edited["updatedInput"]) == ("allow", {"amount": 70})
    refused = await decision(Gate([], [approval(approved=False, reason="Too expensive")]))
    assert refused["permissionDecisionReason"] == "The user refused this call. Their reason: Too expensive"
    ignored = await decision(Gate([]))
    assert "went on with another message" in ignored["permissionDecisionReason"]


async def test_what_the_cli_says_in_the_users_name_is_blocked() -> None:
    gate = Gate(["pay"])
    blocked = await gate.before_prompt({"prompt": "Continue from where you left off."}, None, None)
    assert blocked["decision"] == "block"
    said_by_user = Gate(["pay"], said="Continue from where you left off.")
    assert await said_by_user.before_prompt({"prompt": "Continue from where you left off."}, None, None) == {}
    # So a call that comes now was deferred before.
    assert (await decision(gate))["permissionDecision"] == "deny"
    assert gate.has_settled


@dataclass
class TextBlock:
    text: str


@dataclass
class ToolUseBlock:
    id: str
    name: str
    input: dict[str, Any]


@dataclass
class AssistantMessage:
    content: list[Any]
    model: str = "m"
    message_id: str = "m1"
    parent_tool_use_id: str | None = None
    usage: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class SystemMessage:
    subtype: str
    data: dict[str, Any]


def test_objects_of_the_sdk_and_their_dicts_say_the_same() -> None:
    messages = [
        SystemMessage("init", {"subtype": "init", "tools": ["mcp__a__pay", "mcp__b__pay", "mcp__b__get_weather"]}),
        AssistantMessage(
            [TextBlock("Hi"), ToolUseBlock("1", "mcp__a__pay", {}), ToolUseBlock("2", "mcp__b__get_weather", {})]
        ),
        AssistantMessage([TextBlock("API Error: secret")], model="<synthetic>"),
    ]
    of_objects, of_dicts = ClaudeTranslator(), ClaudeTranslator()
    told = [event for message in messages for event in of_objects.translate(message)]
    assert told == [
        event
        for message in messages
        for event in of_dicts.translate({"type": type(message).__name__, **asdict(message)})
    ]
    assert "secret" not in repr(told)
    # A name that two servers have stays whole.
    assert [getattr(event, "name", None) for event in told[-2:]] == ["mcp__a__pay", "get_weather"]
