"""A log of a session's frames: which turn of it is shown."""

from typing import Any

import msgspec
import pytest

from support.goldens import mapped
from usechat.errors import MappingError
from usechat.integrations.agent_ops.options import AgentOpsOptions
from usechat.integrations.agent_ops.translator import AgentOpsLog

Frame = dict[str, Any]


def recv(*frames: Frame) -> list[Frame]:
    return [{"dir": "recv", "frame": frame} for frame in frames]


def send(**frame: Any) -> Frame:
    return {"dir": "send", "frame": frame}


def turn(number: int, text: str, channel: str = "web:default") -> list[Frame]:
    kind, _, name = channel.partition(":")
    where = {"channelType": kind, "channelId": name}
    data: Frame = {"id": f"t-{number}", "role": "assistant", "content": "", "parts": [], **where}
    return [
        {"type": "message", "data": data},
        {"type": "chunk", "content": text, "messageId": f"t-{number}", **where},
        {"type": "audit_log", "entry": {"eventType": "agent.turn_complete"}},
    ]


def read(log: list[Frame], **options: Any) -> tuple[str, str]:
    """What a log says, and how it ends."""
    chunks = msgspec.to_builtins(mapped("agent-ops", log, options))
    return "".join(chunk.get("delta", "") for chunk in chunks), chunks[-1]["type"]


def echo(text: str) -> Frame:
    return {"type": "message", "data": {"id": f"m-{text}", "role": "user", "content": text, "authorId": "u"}}


def test_the_turn_after_the_prompt_that_the_log_sends_is_shown() -> None:
    before, asked = recv(*turn(1, "Before.")), send(type="prompt", content="Hi")
    log = [*before, send(type="ping"), asked, *recv(echo("Hi"), *turn(2, "Ours."))]
    assert read([*log, send(type="prompt", content="More"), *recv(echo("More"), *turn(3, "After."))]) == (
        "Ours.",
        "finish",
    )


def test_a_log_that_sends_nothing_shows_the_first_turn_on_the_channel() -> None:
    frames = [*turn(1, "Slack.", "slack:C1"), {"type": "totally-new"}, *turn(2, "Web."), *turn(3, "Later.")]
    assert read(frames) == read(recv(*frames)) == ("Web.", "finish")
    assert read(frames, channel="slack:C1") == read(recv(*frames), channel="slack:C1") == ("Slack.", "finish")
    assert read(frames, channel="slack:C2") == ("", "error")


def test_the_channel_of_the_prompt_counts_before_the_option() -> None:
    slack = {"channelType": "slack", "channelId": "C1"}
    asked = {"type": "message", "data": {"id": "m", "role": "user", "content": "Hi", "authorId": "u", **slack}}
    log = [send(type="prompt", content="Hi", **slack), *recv(*turn(1, "Web."), asked, *turn(2, "Ours.", "slack:C1"))]
    assert read(log) == ("Ours.", "finish")


@pytest.mark.parametrize(
    "line", [{"dir": "recv"}, {"dir": "send", "frame": 1}, {"dir": "up", "frame": {}}, {"dir": []}]
)
def test_a_line_of_another_form_is_refused(line: Frame) -> None:
    log = AgentOpsLog(AgentOpsOptions())
    with pytest.raises(MappingError, match=r"^A line of an Agent Ops log has no usable `dir` and `frame`\.$"):
        log.translate(line)
    assert log.translate({"dir": "note", "text": "a remark"}) == []
