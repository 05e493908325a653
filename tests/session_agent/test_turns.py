"""The turns that prompts name, frame by frame."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from support.session_clients import JSON, brief, joined
from usechat.session_agent import SessionAgent, SessionSettings, Turn
from usechat.session_agent.session import attachment_parts

pytestmark = pytest.mark.anyio

LOGS = Path(__file__).parents[1] / "golden" / "agent_ops"

END = ["turn_complete", "status runnerBusy=False", "idle"]

TURNS = {
    "Hello there": [
        *["thinking", "streaming", "assistant: ", "+ You ", "+ said: ", "+ Hello ", "+ there"],
        "updated: You said: Hello there | finish end_turn",
        *END,
    ],
    "tools for me": [
        *["thinking", "streaming", "assistant: ", "+ You ", "+ said: ", "+ tools ", "+ for ", "+ me"],
        "updated: You said: tools for me | finish end_turn",
        *END,
    ],
    "tools": [
        *["thinking", "streaming", "assistant: ", "+ Let me ", "+ look.", "tool_calling bash"],
        *["updated: Let me look. | prt_1 pending", "tool_calling bash", "updated: Let me look. | prt_1 running"],
        *["updated: Let me look. | prt_1 completed", "streaming", "+ Two files: ", "+ a.ts and b.ts."],
        "updated: Two files: a.ts and b.ts. | prt_1 completed | Two files: a.ts and b.ts. | finish end_turn",
        *END,
    ],
    "broken-tool": [
        *["thinking", "streaming", "assistant: ", "+ First.", "tool_calling read", "updated: First. | prt_1 running"],
        *["updated: First. | prt_1 completed", "streaming", "+  Second.", "tool_calling read"],
        "updated: First. | prt_1 completed | First. Second. | prt_2 running",
        "updated: First. | prt_1 completed | First. Second. | prt_2 error",
        *["streaming", "+  b is missing."],
        "updated:  b is missing. | prt_1 completed |  b is missing. | prt_2 error |  b is missing. | finish end_turn",
        *END,
    ],
    "late-tool": [
        *["thinking", "assistant: ", "updated: prt_1 completed", "tool_calling bash"],
        *["updated: prt_1 completed | prt_2 running", "streaming", "+ It runs."],
        "updated: prt_1 completed | prt_2 running | It runs. | finish end_turn",
        "updated: prt_1 completed | prt_2 completed | It runs. | finish end_turn",
        *END,
    ],
    "fail": ["thinking", "error ProviderAuthError: invalid api key", "audit agent.error", *END],
    "fail No luck.": ["thinking", "error No luck.", "audit agent.error", *END],
    "fail-late": [
        *["thinking", "streaming", "assistant: ", "+ It begins ", "+ well."],
        "updated: It begins well. | finish error | error Overloaded",
        *END,
    ],
    "silent": ["thinking", "assistant: ", *END],
    "empty": ["thinking", "assistant: ", "updated: finish end_turn", *END],
    "final": ["thinking", "assistant: ", "updated: Only the end has text. | finish end_turn", *END],
    "failover": [
        *["thinking", "streaming", "assistant: ", "+ The first model ", "+ says", "model-switched"],
        *["streaming", "assistant: ", "+ The second model ", "+ answers."],
        "updated: The second model answers. | finish end_turn",
        *END,
    ],
    "lost": [
        *["thinking", "streaming", "assistant: ", "+ The runner ", "+ goes"],
        *[
            "status runnerConnected=False queuedPrompts=1 runnerDisconnected=True",
            "status runnerConnected=True",
            "models",
            "idle",
        ],
        *["status promptDequeued=True remaining=0", "thinking", "streaming", "assistant: "],
        *["+ The runner ", "+ is back.", "updated: The runner is back. | finish end_turn"],
        *END,
    ],
    "long 3": [
        *["thinking", "streaming", "assistant: ", "+ 0 ", "+ 1 ", "+ 2 ", "updated: 0 1 2  | finish end_turn"],
        *END,
    ],
    "slow 0.01": [
        *["thinking", "streaming", "assistant: ", *(f"+ {number} " for number in range(10))],
        "updated: 0 1 2 3 4 5 6 7 8 9  | finish end_turn",
        *END,
    ],
    "noise": [
        *["thinking", "streaming", "assistant: ", "+ Much ", "title", "git-state", "pr-created", "files-changed"],
        *["models", "status prCreating=True branch=main", "toast", "+ of another turn", "never-heard-of"],
        *["system: Screenshot", "+ noise.", "updated: Much noise. | finish end_turn"],
        *END,
    ],
    "child": [
        *["thinking", "assistant: ", "tool_calling spawn_session", "updated: prt_1 running", "child-session"],
        *["updated: prt_1 completed", "streaming", "+ Started ", "+ a helper."],
        "updated: prt_1 completed | Started a helper. | finish end_turn",
        *END,
    ],
}


@pytest.mark.parametrize("prompt", TURNS)
async def test_a_prompt_gets_the_turn_that_it_names(prompt: str) -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        assert await client.turn(prompt) == TURNS[prompt]


async def test_a_prompt_gets_a_turn_of_ones_own() -> None:
    async def deploy(turn: Turn) -> None:
        await turn.text("It is up.")
        turn.finish()

    async with SessionAgent(plays={"Deploy it": deploy}).serving() as agent, joined(agent) as client:
        own = ["streaming", "assistant: ", "+ It is up.", "updated: It is up. | finish end_turn", *END]
        assert await client.turn("Deploy it") == own
        assert await client.turn("tools") == TURNS["tools"]


async def test_a_turn_in_v2_frames() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.prompt("v2 tools")
        await client.until("audit user.prompt")
        assert await client.briefs("complete", "idle") == [
            *["thinking", "streaming", "message.create", "v2+ Let me ", "v2+ look.", "tool_calling bash"],
            *["v2 prt_1 pending", "tool_calling bash", "v2 prt_1 running", "v2 prt_1 completed"],
            *["streaming", "v2+ Two files: ", "v2+ a.ts and b.ts.", "v2 finish end_turn", "complete", "idle"],
        ]
        finalize = client.heard[-3]
        assert finalize["finalText"] == "Two files: a.ts and b.ts."


async def test_a_turn_in_both_vocabularies_says_everything_twice() -> None:
    settings = SessionSettings(vocabulary="both")
    async with SessionAgent(settings).serving() as agent, joined(agent) as client:
        await client.prompt("long 2")
        await client.until("audit user.prompt")
        assert await client.briefs("complete", *END) == [
            *["thinking", "streaming", "message.create", "assistant: ", "v2+ 0 ", "+ 0 ", "v2+ 1 ", "+ 1 "],
            *["v2 finish end_turn", "updated: 0 1  | finish end_turn", "complete"],
            *END,
        ]
        await client.prompt("v2 long 1")
        await client.until("audit user.prompt")
        assert await client.briefs("complete", "idle") == [
            *["thinking", "streaming", "message.create", "v2+ 0 ", "v2 finish end_turn", "complete", "idle"]
        ]


async def test_a_canceled_turn_is_not_completed() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.prompt("cancel")
        await client.until("audit user.prompt")
        ended = "updated: Work | finish canceled | error OpenCode restarting for config update"
        assert await client.briefs(ended) == ["thinking", "streaming", "assistant: ", "+ Work", ended]
        # Nothing more is said of it, and the next prompt is not queued.
        assert (await client.turn("empty"))[0] == "thinking"
        assert brief(client.heard[-7]) == "audit user.prompt"


async def test_an_event_of_a_child_brings_a_turn_that_nobody_asked_for() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.turn("child")
        event = "Child session event: 11111111-2222-4333-8444-555555555555 is idle."
        frames = await client.briefs(*END)
        assert frames[:3] == [f"system: {event}", "thinking", "streaming"]
        assert frames[-4:] == [f"updated: Noted: {event} | finish end_turn", *END]
        agent.session("s1").unsolicited("empty", {"channelType": "slack", "channelId": "C1"})
        await client.until("system: empty", *END)
        assert client.heard[-5]["data"]["channelType"] == "slack"


@pytest.mark.parametrize("answer", ["staging", True])
async def test_a_question_waits_for_its_answer(answer: str | bool) -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client, joined(agent, "bo") as other:
        await client.prompt("question", channelType="telegram", channelId="555")
        await client.until("audit user.prompt")
        asked = await client.until("toast")
        assert [brief(frame) for frame in asked] == [
            *["thinking", "idle", "assistant: ", "updated: prt_q running", "question", "toast"]
        ]
        question = asked[-2]
        assert (question["channelType"], question["channelId"]) == ("telegram", "555")
        expires, created = question["expiresAt"], asked[2]["data"]["createdAt"]
        assert 300 <= expires - created <= 420
        assert "toast" not in await other.briefs("question")

        await other.send("answer", questionId="que_other", answer="no")
        await other.send("answer", questionId=question["questionId"], answer=answer)
        await other.send("answer", questionId=question["questionId"], answer="too late")
        text = "true" if answer is True else answer
        assert await client.briefs(*END) == [
            *[f"status answer={answer}", "audit user.answer", "updated: prt_q completed", "streaming"],
            *["+ You answered: ", f"+ {text}.", f"updated: prt_q completed | You answered: {text}. | finish end_turn"],
            *END,
        ]


async def test_a_question_expires() -> None:
    settings = SessionSettings(question_seconds=0.01)
    async with SessionAgent(settings).serving() as agent, joined(agent) as client:
        assert (await client.turn("question"))[4:] == [
            *["question", "toast", "status", "streaming", "+ No answer, ", "+ stopping."],
            *["updated: prt_q running | No answer, stopping. | finish end_turn", *END],
        ]
        [expired] = [frame["data"] for frame in client.heard if "questionExpired" in frame.get("data", {})]
        [asked] = [frame for frame in client.heard if frame["type"] == "question"]
        assert expired == {"questionExpired": asked["questionId"]}


async def test_the_frames_of_a_turn_name_the_channel_of_its_prompt() -> None:
    slack = {"channelType": "slack", "channelId": "C1:171"}
    web = {"channelType": "web", "channelId": "default"}

    def channels(frames: list[JSON]) -> dict[str, list[JSON]]:
        found: dict[str, list[JSON]] = {}
        for frame in frames:
            data = frame["data"] if frame["type"].startswith("message") else frame
            channel = {name: data[name] for name in slack if name in data}
            if channel not in found.setdefault(frame["type"], []):
                found[frame["type"]].append(channel)
        return found

    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.prompt("tools")
        without = channels(await client.until(*END))
        await client.prompt("tools", **slack)
        within = channels(await client.until(*END))
        await client.prompt("fail", **slack)
        failed = channels(await client.until(*END))
        await client.prompt("empty", channelType="slack")
        half = channels(await client.until(*END))
    neither: dict[str, list[JSON]] = {"audit_log": [{}], "status": [{}]}
    assert without == {**neither, "message": [{}, web], "agentStatus": [{}], "chunk": [web], "message.updated": [web]}
    told = ("message", "agentStatus", "chunk", "message.updated")
    assert within == {**neither, **{kind: [slack] for kind in told}}
    assert failed == {**neither, **{kind: [slack] for kind in ("message", "agentStatus", "error")}}
    assert half == {**neither, "message": [{}, web], "agentStatus": [{}], "message.updated": [web]}


IMAGE = {"type": "file", "mime": "image/png", "url": "data:image/png;base64,iVBORw0KGgo=", "filename": "a.png"}
TAKEN = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png", "filename": "a.png"}


async def test_attachments_are_echoed() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.prompt("", attachments=[IMAGE])
        frames = await client.until("user: ", *END)
        assert [frame["data"]["parts"] for frame in frames if brief(frame) == "user: "] == [[TAKEN]]


def test_attachments_that_are_of_another_kind_too_large_or_too_many_are_dropped() -> None:
    sound = {"url": "data:audio/webm;codecs=opus;base64,AAAA"}
    heard = {"type": "audio", "data": "AAAA", "mimeType": "audio/webm"}
    text, address = {"url": "data:text/plain;base64,AAAA"}, {"url": "https://example.com/a.png"}
    large, big = ({"url": f"data:image/png;base64,{'A' * size}"} for size in (12_000_000, 11_000_000))
    assert list(attachment_parts([IMAGE, sound])) == [TAKEN, heard]
    assert list(attachment_parts([text, address, large, IMAGE])) == [TAKEN]
    assert list(attachment_parts([IMAGE] * 10)) == [TAKEN] * 8
    assert len(list(attachment_parts([big, big, big, IMAGE]))) == 2
    assert list(attachment_parts(["nonsense", {"url": 5}])) == []
    assert list(attachment_parts("nonsense")) == []


# The optional fields that this agent does not fill, and those that hold whatever somebody said.
OMITTED = ("avatarUrl", "authorAvatarUrl")
WORDS = ("content", "text", "summary", "description", "id", "messageId", "questionId", "questionAnswered", "answer")


def shape(value: Any, name: str = "") -> Any:
    """The fields and the fixed words of a frame."""
    if isinstance(value, dict):
        fields = cast(JSON, value)
        return {key: shape(field, key) for key, field in fields.items() if key not in OMITTED}
    if isinstance(value, list):
        return [shape(item) for item in cast(list[Any], value)]
    if isinstance(value, str) and (name in WORDS or name.startswith("author") or name.endswith(("At", "Id"))):
        return "…"
    return 0 if isinstance(value, int) and not isinstance(value, bool) else value


@pytest.mark.parametrize(
    ("prompt", "log"),
    [
        ("tools", "ws_02_tools"),
        ("broken-tool", "ws_02b_two_tools_one_fails"),
        ("fail", "ws_03_failure_error_frame"),
    ],
)
async def test_a_turn_has_the_frames_of_the_recorded_one(prompt: str, log: str) -> None:
    lines = [json.loads(line) for line in (LOGS / f"{log}.events.jsonl").read_text("utf-8").splitlines()]
    recorded = [shape(line["frame"]) for line in lines if line["dir"] == "recv"][3:]
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.prompt(prompt)
        frames = [shape(frame) for frame in await client.until(*END)]
    assert frames == recorded[: len(frames)]
    assert recorded[len(frames) :] in ([], frames[-1:])
