import json
from typing import Any

import pytest

from usechat.protocol.messages import UIMessage
from usechat.testing import Recording, assert_legal, collect, play

pytestmark = pytest.mark.anyio

START = {"type": "start", "messageId": "1"}
SAID = [{"type": "text-start", "id": "a"}, {"type": "text-delta", "id": "a", "delta": "Ahoy"}]
END = {"type": "text-end", "id": "a"}
FINISH = {"type": "finish", "finishReason": "stop"}
WAITING: dict[str, Any] = {"type": "tool-where", "toolCallId": "c", "state": "input-available", "input": {}}


def recorded(*chunks: dict[str, Any], continues: Any = None) -> Recording:
    lines = [{"usechat": "recording", "request": {"id": "chat"}, "continues": continues}]
    lines += [{"at": 10.5 * number, "chunk": chunk} for number, chunk in enumerate(chunks)]
    return Recording.read("".join(json.dumps(line) + "\n" for line in lines).encode())


def test_a_recording_is_a_stream() -> None:
    recording = recorded(START, *SAID, END, FINISH)
    assert recording.request == {"id": "chat"}
    assert [chunk.at for chunk in recording.chunks] == [0, 10.5, 21, 31.5, 42]
    assert recording.body.endswith(b"data: [DONE]\n\n")
    assert collect(recording.body) == collect([recording.body]) == [START, *SAID, END, FINISH]


def test_what_was_no_json_is_played_as_it_came() -> None:
    recording = Recording.read(b'{"usechat": "recording"}\n{"at": 1, "data": "oops"}\n')
    assert recording.body == b"data: oops\n\ndata: [DONE]\n\n"


HEAD = b'{"usechat": "recording"}\n'
DEEP = b"[" * 1_000_000 + b"]" * 1_000_000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"data: {}",
        HEAD + b"{}",
        b'{"usechat": 1}',
        b'{"usechat": "recording", "request": %b}' % DEEP,
        HEAD + b'{"at": 1, "chunk": %b}' % DEEP,
        HEAD + b'{"at": 1, "chunk": {"type": "\xff"}}',
    ],
    ids=range(8),
)
def test_another_file_is_no_recording(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"This is not a recording of a turn"):
        Recording.read(content)


def test_a_legal_stream_gives_its_message() -> None:
    text = {"type": "text", "text": "Ahoy", "state": "done"}
    assert assert_legal(recorded(START, *SAID, END, FINISH)) == UIMessage("1", "assistant", [text])


def test_a_stream_that_goes_on_is_judged_with_what_was_before() -> None:
    output = {"type": "tool-output-available", "toolCallId": "c", "output": 1}
    more = [START, output, {"type": "start-step"}, *SAID, END, FINISH]
    before = {"id": "1", "role": "assistant", "parts": [WAITING]}
    assert len(assert_legal(recorded(*more, continues=before)).parts) == 3
    body = recorded(*more).body
    assert len(assert_legal(body, continues=UIMessage("1", "assistant", [WAITING])).parts) == 3
    with pytest.raises(AssertionError, match="call-unknown"):
        assert_legal(body)


def test_a_stream_that_is_refused_or_untidy_says_why() -> None:
    with pytest.raises(
        AssertionError, match=r"line 3: `text-delta` for the part 'a', which is not open\. \(part-not-open\)"
    ):
        assert_legal(recorded(START, SAID[1]))
    with pytest.raises(AssertionError, match="part"):
        assert_legal(recorded(START, *SAID, FINISH))


@pytest.mark.parametrize("speed", [0, 1000])
async def test_a_recording_is_played(speed: float) -> None:
    recording = recorded(START, *SAID, END, FINISH)
    assert b"".join([event async for event in play(recording, speed=speed)]) == recording.body
