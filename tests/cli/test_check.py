import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.loopback import INSTALLED_USECHAT
from usechat.cli import main
from usechat.cli.app import app

SAMPLE = Path(__file__).parents[2] / "docs" / "samples" / "hello.sse"


def usechat(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """The command in this process, since a process of its own takes longer to start than to check."""
    done = CliRunner().invoke(app, arguments, input=stdin, env={"COLUMNS": "200", "NO_COLOR": "1"})
    return done.exit_code, done.stdout, done.stderr


def test_a_legal_stream_gives_one_line_and_exit_0() -> None:
    assert usechat("check", str(SAMPLE)) == (
        0,
        "ok: 18 chunks, 5 parts, accepted by ai 5.0.92+, 6.0.0+, 7.0.0+\n",
        "",
    )


def test_a_violation_is_told_with_its_line_and_exit_1() -> None:
    # The program itself, for its input, output and exit code.
    command, stdin = [INSTALLED_USECHAT, "check", "-"], '{"type":"start"}\n{"type":"ping"}\n'
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "<stdin>:2: No client knows the chunk type 'ping'.\n"
        "  rule    unknown-type\n"
        "  remedy  Send a type of the protocol; for data of your own, `data-<name>` with a `data` field.\n",
        "",
    )


V4_BODY = """\
f:{"messageId":"msg-1"}
0:"Hello"
9:{"toolCallId":"c","toolName":"weather","args":{}}
e:{"finishReason":"stop"}
d:{"finishReason":"stop"}
"""
V4_HEADERS = "HTTP/1.1 200 OK\r\nx-vercel-ai-data-stream: v1\r\n\r\n"


@pytest.mark.parametrize(
    ("recording", "line"),
    [
        (V4_BODY, 1),
        ('0:"Hello"\n', 1),
        ('\n3:"Oops"\n', 2),
        (f"{V4_HEADERS}{V4_BODY}", 4),
        ('data: {"type":"start"}\n\ndata: 0:"Hello"\n\n', 3),
    ],
)
def test_the_format_of_ai_sdk_4_is_told_with_the_upgrade_that_is_due(recording: str, line: int) -> None:
    assert usechat("check", "-", stdin=recording) == (
        1,
        f"<stdin>:{line}: This is the data stream of AI SDK 4, which no client from AI SDK 5 on reads.\n"
        "  rule    json\n"
        "  remedy  Upgrade the server: in Node, `ai` 5 or newer and `toUIMessageStreamResponse()` for "
        "`toDataStreamResponse()`; elsewhere, send the UI message stream with the header "
        "`x-vercel-ai-ui-message-stream: v1`.\n",
        "",
    )


def test_an_event_that_lacks_its_blank_line_is_refused() -> None:
    begun = 'data: {"type":"start","messageId":"m"}\n\n'
    told = (
        1,
        "<stdin>:3: An event at the end without its blank line: every client drops it.\n"
        "  rule    event-cut-off\n"
        "  remedy  End each event with a blank line, also the last one.\n",
        "",
    )
    for ending in ("", "\n", "\r\n"):
        assert usechat("check", "-", stdin=f'{begun}data: {{"type":"finish"}}{ending}') == told
    whole = f'{begun}data: {{"type":"finish"}}\n\n'
    # No client needs to read this one.
    for last in ("", "data: [DONE]", "data: [DONE]\n", ": a comment\n"):
        assert usechat("check", "-", stdin=whole + last)[0] == 0


def test_who_takes_the_reason_unknown_is_told() -> None:
    chunks = '{"type":"start"}\n{"type":"finish","finishReason":"%s"}\n'
    code, out, _ = usechat("check", "-", stdin=chunks % "unknown")
    problem = "The finish chunk has the reason 'unknown', which only ai 5.0.92 and later 5 take: send 'other'."
    assert (code, out.splitlines()[0]) == (1, f"<stdin>:2: {problem}")
    code, out, _ = usechat("check", "-", stdin=chunks % "made-up")
    problem = "The finish chunk has a wrong field: Invalid enum value 'made-up' - at `$.finishReason`."
    assert (code, out.splitlines()[0]) == (1, f"<stdin>:2: {problem}")


def test_the_message_goes_to_stdout_and_the_verdict_beside_it() -> None:
    code, out, err = usechat("check", "--message", str(SAMPLE))
    message = json.loads(out)
    assert (code, message["id"], message["parts"][-1]["text"]) == (0, "msg-1", "It is 12 °C in Bern.")
    assert err == "ok: 18 chunks, 5 parts, accepted by ai 5.0.92+, 6.0.0+, 7.0.0+\n"


def test_machines_get_json() -> None:
    code, out, _ = usechat("check", "--json", "--client", "v6", "-", stdin='{"type":"text-end","id":"t"}\n')
    assert (code, json.loads(out)) == (
        1,
        {
            "ok": False,
            "level": "refused",
            "chunks": 0,
            "parts": 0,
            "clients": ["5.0.0", "6.0.0", "7.0.0"],
            "violation": {
                "level": "refused",
                "line": 1,
                "chunk": "text-end",
                "rule": "part-not-open",
                "problem": "`text-end` for the part 't', which is not open.",
                "remedy": "Send the part's start first; `finish-step` closes all parts for older clients.",
            },
            "warnings": [],
        },
    )
    code, out, _ = usechat("check", "--json", "--message", str(SAMPLE))
    assert (code, json.loads(out)["level"], json.loads(out)["message"]["role"]) == (0, "clean", "assistant")


ABORTED = '{"type":"start"}\n{"type":"text-start","id":"t"}\n{"type":"abort"}\n'


def test_what_is_left_untidy_is_a_warning_which_only_strict_minds() -> None:
    assert usechat("check", "-", stdin=ABORTED) == (
        0,
        "<stdin>:3: warning: The stream ends while the part 't' is open.\n"
        "  rule    part-left-open\n"
        "  remedy  Send the part's end first.\n"
        "untidy: 3 chunks, 1 parts, accepted by ai 5.0.0+, 6.0.0+, 7.0.0+\n",
        "",
    )
    code, out, _ = usechat("check", "--strict", "--json", "-", stdin=ABORTED)
    report = json.loads(out)
    assert (code, report["ok"], report["level"], report["violation"]) == (1, False, "untidy", None)
    assert [warning["level"] for warning in report["warnings"]] == ["untidy"]


def test_a_continuation_is_judged_with_the_message_that_it_continues(tmp_path: Path) -> None:
    part: dict[str, Any] = {"type": "tool-f", "toolCallId": "c", "state": "input-available", "input": {}}
    before = tmp_path / "before.json"
    before.write_text(json.dumps({"id": "m", "role": "assistant", "parts": [part]}))
    chunks: tuple[dict[str, Any], ...] = (
        {"type": "start", "messageId": "m"},
        {"type": "tool-output-available", "toolCallId": "c", "output": 1},
        {"type": "start-step"},
        {"type": "finish", "messageMetadata": {}},
    )
    stream = "".join(f"{json.dumps(chunk)}\n" for chunk in chunks)
    assert usechat("check", "-", "--continues", str(before), stdin=stream)[0] == 0
    code, out, _ = usechat("check", "-", stdin=stream)
    assert (code, "--continues FILE" in out) == (1, True)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("no", " is not JSON: Expecting value: line 1 column 1 (char 0)."),
        ('{"id":"m","role":"assistant"}', ": The message.parts is missing."),
        ('{"id":"m","role":"user","parts":[{"type":"text","text":"x"}]}', " must be a message of the assistant."),
    ],
)
def test_a_wrong_message_to_continue_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    before = tmp_path / "before.json"
    before.write_text(content)
    assert usechat("check", str(SAMPLE), "--continues", str(before)) == (2, "", f"{before}{sentence}\n")


@pytest.mark.parametrize("arguments", [["check"], ["check", str(SAMPLE), "--client", "v4"], ["nonsense"]])
def test_wrong_usage_gives_exit_2_and_leaves_stdout_empty(arguments: list[str]) -> None:
    code, out, err = usechat(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: " in err


def test_a_file_that_cannot_be_read_is_refused() -> None:
    sentence = "no-such-file cannot be read: No such file or directory.\n"
    assert usechat("check", "no-such-file") == (2, "", sentence)


def test_an_event_without_end_is_refused_as_input(tmp_path: Path) -> None:
    large = tmp_path / "large.sse"
    large.write_bytes(b"data: " + b"x" * (33 * 1024 * 1024))
    assert usechat("check", str(large)) == (
        2,
        "",
        "An event is larger than 33,554,432 bytes. Send large values in parts, or by reference.\n",
    )


def test_the_version_is_told() -> None:
    assert usechat("--version") == (0, "usechat 0.1.0\n", "")


def test_without_its_extra_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("typer", "rich") or "usechat.cli." in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == "The usechat command needs typer. Install it with: pip install 'usechat[cli]'"
