import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.goldens import Case, cases
from support.hang import HANG_SECONDS
from usechat.cli.app import app
from usechat.integrations import load_log_translators

CASES = {case.name: case for case in cases("open-harness")}
HELLO = CASES["01_simple_text"]


def usechat_map(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["map", *arguments], input=stdin)
    return done.exit_code, done.stdout_bytes.decode(), done.stderr_bytes.decode()


def chosen(case: Case) -> list[str]:
    return [f"--option={name}={json.dumps(value)}" for name, value in case.options.items()]


@pytest.mark.parametrize("name", ["01_simple_text", "everything_is_sent", "without_reasoning_and_steps", "interrupted"])
def test_a_log_gives_the_stream_of_its_golden_file(name: str) -> None:
    case = CASES[name]
    code, out, err = usechat_map("open-harness", str(case.log), "--output", "chunks", *chosen(case))
    assert (code, out, err) == (0, case.chunks.read_text("utf-8"), "")


def test_without_more_words_the_stream_is_server_sent_events() -> None:
    code, out, _ = usechat_map("open-harness", "-", stdin=HELLO.log.read_bytes())
    lines = [f"data: {line}" for line in HELLO.chunks.read_text("utf-8").splitlines()]
    assert (code, out) == (0, "\n\n".join([*lines, "data: [DONE]", ""]))


def test_the_message_is_what_the_client_builds() -> None:
    code, out, _ = usechat_map("open-harness", str(HELLO.log), "--output", "message")
    message = json.loads(out)
    assert (code, message["id"], message["role"]) == (0, "message-1", "assistant")
    assert message["parts"] == [{"type": "step-start"}, {"type": "text", "text": "Hello there.", "state": "done"}]
    assert message["metadata"]["usage"]["totalTokens"] == 46


def test_an_older_client_gets_an_older_form() -> None:
    _, newer, _ = usechat_map("open-harness", str(HELLO.log), "--output", "chunks")
    _, older, _ = usechat_map("open-harness", str(HELLO.log), "--output", "chunks", "--client", "v5")
    assert json.loads(newer.splitlines()[-1]) == {"type": "finish", "finishReason": "stop"}
    assert json.loads(older.splitlines()[-1]) == {"type": "finish"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"type":', "The line is not JSON: Expecting value at character 9."),
        (b'["flow:start"]', "The line is not a JSON object."),
        (b'"flow:start"', "The line is not a JSON object."),
        (b"[" * 100_000, "The line is nested too deeply."),
        (b'{"type":"\xff"}', "The line cannot be read: 'utf-8' codec can't decode byte 0xff in position 9"),
    ],
)
def test_a_line_that_is_no_event_is_told_with_its_number_and_ends_the_stream(line: bytes, reason: str) -> None:
    log = b'{"type":"flow:start","flowName":"f"}\r\n\n  \n' + line + b'\n{"type":"flow:complete"}\n'
    code, out, err = usechat_map("open-harness", "-", "--output", "chunks", stdin=log)
    assert code == 1
    assert err.startswith(f"<stdin>:4: {reason}")
    assert err.count("\n") == 1
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["start", "error"]


def test_a_wrong_line_of_a_file_is_told_with_the_file_and_no_message(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    log.write_text("nonsense\n", encoding="utf-8")
    assert usechat_map("open-harness", str(log), "--output", "message") == (
        1,
        "",
        f"{log}:1: The line is not JSON: Expecting value at character 1.\n",
    )


def test_events_that_could_not_be_used_are_counted_on_stderr() -> None:
    frames = b'{"type":"event","event":{"type":"flow:start"}}\n{"type":"command","command":{"type":"abort"}}\n'
    commands = b'{"type":"abort"}\n{"type":"abort","resumable":true}\n'
    rest = b'{"type":"flow:complete"}\n{"type":"flow:complete"}\n'
    code, out, err = usechat_map("open-harness", "-", "--output", "chunks", stdin=frames + commands + rest)
    assert (code, len(out.splitlines())) == (0, 2)
    assert err.splitlines() == [
        "not used, 1 event: Open Harness has no event of the type 'command'.",
        "not used, 2 events: Open Harness has no event of the type 'abort'.",
        "not used, 1 event: The run had ended.",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["openharness", "-"],
            f"There is no source 'openharness'. The sources are {', '.join(load_log_translators())}.",
        ),
        (["open-harness", "no-such-file"], "no-such-file cannot be read: No such file or directory."),
        (["open-harness", "-", "--option", "thoughts=true"], "There is no option 'thoughts': the options are send_"),
        (["open-harness", "-", "--option", "sendReasoning=1"], "The option sendReasoning is true or false, not 1."),
        (["open-harness", "-", "--option", "sendReasoning=no"], "The option sendReasoning is true or false, not 'no'."),
        (["agent-ops", "-", "--option", "forward=chunk"], "'chunk' cannot be forwarded: what can is audit_log,"),
        (["deep-agent", "-", "--option", "sources=none"], "sources is one of data, standard, both, not 'none'."),
        (["langgraph", "-", "--option", "subgraphs=true"], "The option subgraphs is data, lanes or off."),
        (
            ["open-harness", "-", "--option", "sendReasoning"],
            "The option 'sendReasoning' must have the form name=true or name=false.",
        ),
    ],
)
def test_wrong_usage_gives_exit_2_and_one_sentence(arguments: list[str], sentence: str) -> None:
    code, out, err = usechat_map(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(sentence)


AGENT_OPS = {case.name: case for case in cases("agent-ops")}


@pytest.mark.parametrize("name", ["ws_02_tools", "v2_06_question", "forwarded"])
def test_a_log_of_agent_ops_is_mapped_in_both_forms(name: str) -> None:
    case = AGENT_OPS[name]
    code, out, _ = usechat_map("agent-ops", str(case.log), "--output", "chunks", *chosen(case))
    assert (code, out) == (0, case.chunks.read_text("utf-8"))


def test_the_channel_of_an_agent_ops_log_is_an_option() -> None:
    log = AGENT_OPS["v2_01_simple_text"].log.read_bytes().replace(b'"web"', b'"slack"').replace(b'"default"', b'"C1"')
    _, out, _ = usechat_map("agent-ops", "-", "--output", "message", stdin=log)
    assert json.loads(out)["parts"] == [
        {"type": "data-agent-status", "id": "agent-status", "data": {"status": "streaming"}}
    ]
    _, out, _ = usechat_map("agent-ops", "-", "--output", "message", "--option", "channel=slack:C1", stdin=log)
    assert json.loads(out)["parts"][-1]["text"] == "Hello."


def test_frames_that_nobody_knows_are_counted_on_stderr() -> None:
    code, _, err = usechat_map("agent-ops", str(AGENT_OPS["v2_90_noise"].log))
    assert (code, err) == (0, "not used, 1 event: Agent Ops has no frame of the type 'totally-new'.\n")


DEEP_AGENT = {case.name: case for case in cases("deep-agent")}


@pytest.mark.parametrize(
    "name", ["02_tools_todos_and_file", "sources_both", "only_named_events", "side_events_by_twos"]
)
def test_a_log_of_a_deep_agent_is_mapped(name: str) -> None:
    case = DEEP_AGENT[name]
    code, out, err = usechat_map("deep-agent", str(case.log), "--output", "chunks", *chosen(case))
    assert (code, out, err) == (0, case.chunks.read_text("utf-8"), "")


def begun() -> "subprocess.Popen[bytes]":
    """A process that waits for the first line of its log."""
    return subprocess.Popen(
        [sys.executable, "-c", "from usechat.cli import main; main()", "map", "open-harness", "-", "--output=chunks"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )


def test_a_stream_is_printed_as_its_events_come() -> None:
    with begun() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = threading.Timer(HANG_SECONDS, process.kill)
        deadline.start()
        assert json.loads(process.stdout.readline())["type"] == "start"
        for word in ("One", "Two"):
            event = {"type": "agent:text", "nodeId": "a", "runId": "r", "content": word}
            process.stdin.write(json.dumps(event).encode() + b"\n")
            process.stdin.flush()
            deltas = (json.loads(line).get("delta") for line in iter(process.stdout.readline, b""))
            assert next(delta for delta in deltas if delta is not None) == word
        process.stdin.close()
        assert json.loads(process.stdout.readlines()[-1])["type"] == "error"
        assert process.wait() == 0
        deadline.cancel()


def test_ctrl_c_ends_a_stream_that_waits_for_its_next_event() -> None:
    with begun() as process:
        assert process.stdout is not None
        deadline = threading.Timer(HANG_SECONDS, process.kill)
        deadline.start()
        assert json.loads(process.stdout.readline())["type"] == "start"
        process.send_signal(signal.SIGINT)
        assert [json.loads(line)["type"] for line in process.stdout.readlines()] == ["error"]
        assert process.wait() == 130
        deadline.cancel()
