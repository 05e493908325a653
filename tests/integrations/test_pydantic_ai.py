"""Agents of Pydantic AI with scripted models: what the page sees, and what the model gets."""

import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from support.driving import user
from support.goldens import mapped
from support.graph_chats import GraphChat
from support.loopback import ask, parts, serving
from usechat import create_app
from usechat.errors import RequestError
from usechat.integrations import agent_of
from usechat.integrations.pydantic_ai import PydanticAIAgent, show_sub_agent
from usechat.integrations.pydantic_ai.messages import to_messages
from usechat.protocol.chunks import TextDelta
from usechat.protocol.messages import UIMessage

pytestmark = pytest.mark.anyio

ai: Any = import_module("pydantic_ai")
function: Any = import_module("pydantic_ai.models.function")
native: Any = import_module("pydantic_ai.messages")
vercel_ai: Any = import_module("pydantic_ai.ui.vercel_ai.response_types")
PNG = b"\x89PNG"


class Script:
    """A model that says one list after the other, and keeps what it was asked."""

    def __init__(self, *replies: list[Any]) -> None:
        self.asked: list[list[Any]] = []
        self._replies = iter(replies)

    async def say(self, messages: list[Any], info: Any) -> AsyncGenerator[Any, None]:
        self.asked.append([*messages])
        for said in next(self._replies):
            if isinstance(said, Exception):
                raise said
            yield said

    @property
    def model(self) -> Any:
        return function.FunctionModel(stream_function=self.say)

    def parts(self, turn: int = -1) -> list[tuple[Any, ...]]:
        """What the model got, without times and ids of runs."""
        return [_short(part) for message in self.asked[turn] for part in message.parts]


def _short(part: Any) -> tuple[Any, ...]:
    content = part.args_as_dict() if part.part_kind.endswith("tool-call") else part.content
    names = ("tool_call_id", "outcome", "signature", "id", "provider_name", "provider_details")
    return (part.part_kind, content, *(value for name in names if (value := getattr(part, name, None)) is not None))


def call(number: int, name: str, arguments: str = "{}") -> dict[int, Any]:
    return {number: function.DeltaToolCall(name=name, json_args=arguments, tool_call_id=f"call_{number}")}


def thought(text: str, signature: str | None = None) -> dict[int, Any]:
    return {0: function.DeltaThinkingPart(content=text, signature=signature)}


def of(chunks: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [chunk for chunk in chunks if chunk["type"] == kind]


def texts(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["delta"] for chunk in of(chunks, "text-delta"))


async def test_agents_are_recognised_and_classes_are_not() -> None:
    agent = ai.Agent("test")
    assert isinstance(agent_of(agent), PydanticAIAgent)
    assert isinstance(agent_of(import_module("pydantic_ai.agent").WrapperAgent(agent)), PydanticAIAgent)
    with pytest.raises(TypeError, match="Agent is not an agent"):
        create_app(ai.Agent)


async def test_a_release_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "pydantic_ai_slim-1.107.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pydantic-ai-slim\nVersion: 1.107.0\n", "utf-8")
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    with pytest.raises(
        RuntimeError, match=r"needs Pydantic AI 2.0 or newer, and 1.107.0 is installed. Install it with"
    ):
        PydanticAIAgent(ai.Agent("test"))


async def test_the_next_turn_has_what_a_native_history_would_have() -> None:
    first = [
        [thought("Hm.", "SIG"), "Let me ", "look.", call(1, "look", '{"topic":"sea"}'), call(2, "fail")],
        ["Salty."],
    ]
    script = Script(*first, ["Bye."])
    agent = ai.Agent(script.model, system_prompt="Be short.", instructions="Be kind.")

    @agent.tool_plain
    def look(topic: str) -> dict[str, Any]:
        return {"topic": topic, "salt": 35}

    @agent.tool_plain
    def fail() -> str:
        raise ai.ModelRetry("Not now.")

    chat = GraphChat(agent)
    await chat.say("What is in the sea?")
    await chat.say("Thanks")
    served = script.parts()

    script = Script(*first, ["Bye."])
    result = await agent.run("What is in the sea?", model=script.model, event_stream_handler=_ignore)
    await agent.run("Thanks", model=script.model, message_history=result.all_messages(), event_stream_handler=_ignore)
    natively = [("failed" if value == "retried" else value for value in part) for part in script.parts()]
    assert served == [tuple(part) for part in natively]
    assert served.count(("system-prompt", "Be short.")) == 1
    assert (served[2], served[-1]) == (("thinking", "Hm.", "SIG", "function"), ("user-prompt", "Thanks"))


async def _ignore(_: Any, events: Any) -> None:
    async for _event in events:
        pass


async def test_an_edit_takes_back_what_came_after_it() -> None:
    script = Script(["One."], ["Two."], ["Three."])
    chat = GraphChat(ai.Agent(script.model))
    await chat.say("first", "u1")
    await chat.say("second", "u2")
    await chat.say("other", "u1", messageId="u1")
    assert script.parts() == [("user-prompt", "other")]


class Forecast(BaseModel):
    city: str
    celsius: int


async def test_a_structured_output_is_data_and_comes_back_as_the_call_that_it_was() -> None:
    wrong, right = '{"city":"Paris","celsius":"warm"}', '{"city":"Paris","celsius":21}'
    script = Script(
        [call(1, "final_result", wrong)], [call(2, "final_result", right)], [call(3, "final_result", right)]
    )
    chat = GraphChat(ai.Agent(script.model, output_type=Forecast))
    said = await chat.say("forecast")
    assert of(said, "data-output") == [
        {"type": "data-output", "id": "final_result:call_2", "data": {"city": "Paris", "celsius": 21}}
    ]
    assert not [chunk for chunk in said if chunk["type"].startswith("tool-")]
    await chat.say("again")
    assert script.parts()[1:3] == [
        ("tool-call", {"city": "Paris", "celsius": 21}, "call_2"),
        ("tool-return", "Final result processed.", "call_2", "success"),
    ]


async def test_an_output_tool_with_a_name_of_its_own_is_not_shown_either() -> None:
    script = Script(["Here it is.", call(1, "forecast", '{"city":"Paris","celsius":21}')])
    output_type = [str, ai.ToolOutput(Forecast, name="forecast")]
    said = await GraphChat(ai.Agent(script.model, output_type=output_type)).say("forecast")
    assert [one["id"] for one in of(said, "data-output")] == ["forecast:call_1"]
    assert not [chunk for chunk in said if chunk["type"].startswith("tool-")]


async def test_a_text_of_an_output_function_is_text() -> None:
    def shout(text: str) -> str:
        return text.upper()

    script = Script([call(1, "final_result", '{"text":"hello"}')])
    assert texts(await GraphChat(ai.Agent(script.model, output_type=shout)).say("Hi")) == "HELLO"


def paying(script: Script) -> Any:
    agent = ai.Agent(script.model)

    def pay(ctx: Any, amount: int) -> str:
        if not ctx.tool_call_approved:
            raise ai.ApprovalRequired(metadata={"reason": f"It costs {amount}."})
        return f"paid {amount}"

    pay.__annotations__["ctx"] = ai.RunContext
    agent.tool(pay)
    return agent


PAY = ["May I?", call(1, "pay", '{"amount":5}'), call(2, "pay", '{"amount":6}')]


async def test_an_approval_edits_one_call_and_refuses_another() -> None:
    script = Script(PAY, ["Done."], ["Bye."])
    chat = GraphChat(paying(script))
    asked = of(await chat.say("pay"), "tool-approval-request")
    ids = {one["toolCallId"]: one["approvalId"] for one in asked}
    body = {"approvals": {ids["call_1"]: {"input": {"amount": 50}}}}
    said = await chat.answer(
        {"call_1": {"approved": True}, "call_2": {"approved": False, "reason": "Too much"}}, **body
    )
    assert [one["output"] for one in of(said, "tool-output-available")] == ["paid 50"]
    answered = [
        ("tool-return", "paid 50", "call_1", "success"),
        ("tool-return", "The user refused this call. Their reason: Too much", "call_2", "denied"),
    ]
    assert [part for part in script.parts() if part[0] == "tool-return"] == answered
    # Later turns tell the model the same.
    await chat.say("Thanks")
    assert [part for part in script.parts() if part[0] == "tool-return"] == answered


async def test_approvals_are_answered_together_and_edits_are_objects() -> None:
    chat = GraphChat(paying(Script(PAY, ["Done."])))
    asked = of(await chat.say("pay"), "tool-approval-request")
    with pytest.raises(RequestError, match="answered together"):
        await chat.answer({"call_1": {"approved": True}})
    both = {"call_1": {"approved": True}, "call_2": {"approved": True}}
    with pytest.raises(RequestError, match="to change the arguments"):
        await chat.answer(both, approvals={asked[0]["approvalId"]: {"input": 5}})
    assert texts(await chat.answer(both)) == "Done."


async def test_an_ignored_approval_is_not_in_the_history() -> None:
    script = Script(PAY, ["Bye."])
    chat = GraphChat(paying(script))
    await chat.say("pay")
    await chat.say("Never mind")
    assert script.parts() == [("user-prompt", "pay"), ("text", "May I?"), ("user-prompt", "Never mind")]


async def test_a_tool_of_an_external_toolset_is_the_page_s() -> None:
    tools: Any = import_module("pydantic_ai.tools")
    toolset = import_module("pydantic_ai.toolsets").ExternalToolset([tools.ToolDefinition(name="locate")])
    script = Script(["Where?", call(1, "locate")], ["I see."])
    chat = GraphChat(ai.Agent(script.model, toolsets=[toolset]))
    said = await chat.say("Where am I?")
    assert [one["toolName"] for one in of(said, "tool-input-available")] == ["locate"]
    assert not of(said, "tool-output-available") + of(said, "tool-output-error") + of(said, "tool-approval-request")
    last = (await chat.messages())[-1]
    [answered] = [part for part in last.parts if part["type"] == "tool-locate"]
    answered |= {"state": "output-available", "output": {"city": "Oslo"}}
    assert texts(await chat.post(last)) == "I see."
    assert script.parts()[-1] == ("tool-return", {"city": "Oslo"}, "call_1", "success")


async def test_what_a_capability_approves_is_not_asked() -> None:
    async def approve(_: Any, requests: Any) -> Any:
        return ai.DeferredToolResults(approvals={one.tool_call_id: True for one in requests.approvals})

    handle: Any = import_module("pydantic_ai.capabilities").HandleDeferredToolCalls
    agent = ai.Agent(Script([call(1, "pay")], ["Done."]).model, capabilities=[handle(approve)])

    @agent.tool_plain(requires_approval=True)
    def pay() -> str:
        return "paid"

    said = await GraphChat(agent).say("pay")
    assert (of(said, "tool-approval-request"), texts(said)) == ([], "Done.")


async def test_an_agent_with_output_validators_is_served() -> None:
    agent = ai.Agent(Script(["Hello."]).model)

    @agent.output_validator
    def check(output: str) -> str:
        return output

    assert texts(await GraphChat(agent).say("Hi")) == "Hello."


async def test_deps_are_made_of_the_chat() -> None:
    async def make(chat: Any) -> str:
        return f"deps of {chat.id}"

    def instructions(ctx: Any) -> str:
        return ctx.deps

    instructions.__annotations__["ctx"] = ai.RunContext[str]
    for deps in (make, "deps of chat"):
        script = Script(["Hello."])
        agent = ai.Agent(script.model, deps_type=str, instructions=instructions)
        await GraphChat(PydanticAIAgent(agent, deps=deps)).say("Hi")
        assert script.asked[0][-1].instructions == "deps of chat"


async def test_model_settings_reach_the_model() -> None:
    seen: list[Any] = []

    async def say(_: Any, info: Any) -> AsyncGenerator[str, None]:
        seen.append(info.model_settings)
        yield "Hello."

    agent = ai.Agent(function.FunctionModel(stream_function=say))
    await GraphChat(PydanticAIAgent(agent, model_settings={"temperature": 0.5})).say("Hi")
    assert seen == [{"temperature": 0.5}]


async def test_files_of_the_user_are_native_content() -> None:
    def file(media_type: str, url: str, **more: str) -> dict[str, Any]:
        return {"type": "file", "mediaType": media_type, "url": url, **more}

    [request] = to_messages(
        [
            UIMessage(
                "u1",
                "user",
                [
                    {"type": "text", "text": "Look"},
                    file("image/png", "data:image/png;base64,iVBORw=="),
                    file("application/pdf", "https://example.org/a"),
                    file("audio/mpeg", "https://example.org/b"),
                    file("text/plain", "data:text/plain,hello", filename="a.txt"),
                ],
            )
        ]
    )
    assert request.parts[0].content == [
        "Look",
        native.BinaryContent(PNG, media_type="image/png"),
        native.DocumentUrl("https://example.org/a", media_type="application/pdf"),
        native.AudioUrl("https://example.org/b", media_type="audio/mpeg"),
        'The file "a.txt":\n\nhello',
    ]


async def test_a_chat_that_another_agent_began_goes_on() -> None:
    script = Script(["Hello."])
    encrypted = {"itemId": "rs", "reasoningEncryptedContent": "E"}
    done: dict[str, Any] = {"state": "output-available", "input": {}, "output": 1}
    parts: list[dict[str, Any]] = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "Signed", "providerMetadata": {"anthropic": {"signature": "S"}}},
        {"type": "reasoning", "text": "Encrypted", "providerMetadata": {"openai": encrypted}},
        {"type": "reasoning", "text": "Unsigned"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool-search", "toolCallId": "w", **done, "providerExecuted": True},
        {"type": "tool-look", "toolCallId": "a", "state": "input-available", "input": {"x": 1}},
        {"type": "tool-look", "toolCallId": "b", "state": "output-error", "input": {"x": 2}, "errorText": "No."},
    ]
    history = [user("Hi"), UIMessage("a1", "assistant", parts), user("Go on", "u2")]
    agent = ai.Agent(script.model)
    await agent.run(message_history=to_messages(history), event_stream_handler=_ignore)
    assert script.parts() == [
        ("user-prompt", "Hi"),
        ("thinking", "Signed", "S", "anthropic"),
        ("thinking", "Encrypted", "E", "rs", "openai"),
        ("text", "Let me see."),
        ("tool-call", {"x": 1}, "a"),
        ("tool-call", {"x": 2}, "b"),
        ("tool-return", "This call has no result: it was not run, or was interrupted.", "a", "failed"),
        ("tool-return", "No.", "b", "failed"),
        ("user-prompt", "Go on"),
    ]


async def test_native_tools_and_files_of_the_model_come_back() -> None:
    search = native.NativeToolCallPart("web_search", {"query": "x"}, "ws", provider_name="function")
    found = native.NativeToolReturnPart("web_search", {"n": 1}, "ws", provider_name="function")
    script = Script([{0: search}, {1: found}, "Here."], ["Bye."])
    chat = GraphChat(ai.Agent(script.model))
    said = await chat.say("search")
    assert [one["providerExecuted"] for one in of(said, "tool-output-available")] == [True]
    await chat.say("Thanks")
    assert script.parts() == [
        ("user-prompt", "search"),
        ("builtin-tool-call", {"query": "x"}, "ws", "function"),
        ("builtin-tool-return", {"n": 1}, "ws", "success", "function"),
        ("text", "Here."),
        ("user-prompt", "Thanks"),
    ]


async def test_an_image_in_a_result_is_an_image_again() -> None:
    script = Script([call(1, "draw")], ["Done."], ["Bye."])
    agent = ai.Agent(script.model)

    @agent.tool_plain
    def draw() -> Any:
        return ["A dot", native.BinaryContent(PNG, media_type="image/png")]

    chat = GraphChat(agent)
    await chat.say("draw")
    await chat.say("Thanks")
    [drawn] = [part for part in script.parts() if part[0] == "tool-return"]
    assert (drawn[1][0], drawn[1][1].data, drawn[1][1].media_type) == ("A dot", PNG, "image/png")


async def test_events_and_chunks_of_the_app_reach_the_page() -> None:
    @dataclass(kw_only=True)
    class Progress(ai.CustomEvent):
        done: int

    @dataclass(kw_only=True)
    class Secret(ai.CustomEvent):
        done: int

    Secret.ui = False

    agent = ai.Agent(Script([call(1, "work")], ["Done."]).model)

    async def work(ctx: Any) -> Any:
        await ctx.emit(Progress(done=1))
        await ctx.emit(Secret(done=2))
        return ai.ToolReturn("ok", metadata=[vercel_ai.DataChunk(type="data-extra", data={"x": 1}), "other"])

    work.__annotations__["ctx"] = ai.RunContext
    agent.tool(work)
    said = await GraphChat(agent).say("work")
    assert [(one["type"], one["data"]) for one in said if one["type"].startswith("data-")] == [
        ("data-progress", {"done": 1}),
        ("data-extra", {"x": 1}),
    ]


async def test_a_sub_agent_is_shown_and_may_fail() -> None:
    helper = ai.Agent(Script([ConnectionError("secret")]).model, name="helper")
    agent = ai.Agent(Script([call(1, "ask")], ["It failed."]).model)

    @agent.tool_plain
    async def ask() -> str:
        try:
            return (await helper.run("?", event_stream_handler=show_sub_agent)).output
        except ConnectionError:
            return "no answer"

    said = await GraphChat(agent).say("ask")
    assert [one["data"]["status"] for one in of(said, "data-subagent")] == ["failed"]
    assert texts(said) == "It failed."
    # Outside of a turn nothing is shown, and nothing breaks.
    alone = ai.Agent(Script(["Hello."]).model)
    assert (await alone.run("Hi", event_stream_handler=show_sub_agent)).output == "Hello."


async def test_an_answer_that_its_provider_calls_failed_is_an_error() -> None:
    wrapper: Any = import_module("pydantic_ai.models.wrapper").WrapperModel

    class Failing(wrapper):
        def request_stream(self, *given: Any, **more: Any) -> Any:
            return _failing(self.wrapped.request_stream(*given, **more))

    said = await GraphChat(ai.Agent(Failing(Script(["This is"]).model))).say("Hi")
    assert (texts(said), [one["errorText"] for one in of(said, "error")]) == ("This is", ["RuntimeError"])


def _failing(opened: Any) -> Any:
    class Opened:
        async def __aenter__(self) -> Any:
            response = await opened.__aenter__()
            response.finish_reason = "error"
            return response

        async def __aexit__(self, *error: Any) -> Any:
            return await opened.__aexit__(*error)

    return Opened()


async def test_usage_counts_every_model_call_of_the_run() -> None:
    script = Script([call(1, "look")], ["Done."])
    agent = ai.Agent(script.model)

    @agent.tool_plain
    def look() -> str:
        return "seen"

    told = of(await GraphChat(agent).say("look"), "message-metadata")
    assert [one["messageMetadata"]["usage"]["inputTokens"] for one in told] == [50, 100]


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "pydantic-ai.md"
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_program_of_the_guide_asks_and_answers() -> None:
    names: dict[str, Any] = {"__name__": "app"}
    exec(compile(BLOCKS[0], "app.py", "exec"), names)  # noqa: S102
    with serving(names["app"]) as url:
        [_, said, letter] = parts(ask(f"{url}/api/chat").text)
    assert (said["text"], letter["type"], letter["state"]) == ("May I send this?", "tool-send", "approval-requested")


def test_the_other_programs_of_the_guide_run(tmp_path: Path) -> None:
    assert len(BLOCKS) == 5
    for block in BLOCKS[1:]:
        subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True)
    log = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text("utf-8").splitlines()]
    said = [chunk.delta for chunk in mapped("pydantic-ai", log, {}) if isinstance(chunk, TextDelta)]
    assert "".join(said) == "success (no tool calls)"
