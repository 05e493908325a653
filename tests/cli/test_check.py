import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from usechat.cli import main

SAMPLE = Path(__file__).parents[2] / "docs" / "samples" / "hello.sse"


def usechat(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", "from usechat.cli import main; main()", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONUTF8": "1"},
    )
    return done.returncode, done.stdout, done.stderr


def test_a_legal_stream_gives_one_line_and_exit_0() -> None:
    assert usechat("check", str(SAMPLE)) == (
        0,
        "ok: 18 chunks, 5 parts, accepted by ai 5.0.92+, 6.0.0+, 7.0.0+\n",
        "",
    )


def test_a_violation_is_told_with_its_line_and_exit_1() -> None:
    assert usechat("check", "-", stdin='{"type":"start"}\n{"type":"ping"}\n') == (
        1,
        "<stdin>:2: No client knows the chunk type 'ping'.\n"
        "  rule    unknown-type\n"
        "  remedy  Send a type of the protocol; for data of your own, `data-<name>` with a `data` field.\n",
        "",
    )


def test_the_message_goes_to_stdout_and_the_verdict_beside_it() -> None:
    code, out, err = usechat("check", "--message", str(SAMPLE))
    message = json.loads(out)
    assert (code, message["id"], message["parts"][-1]["text"]) == (0, "msg-1", "It is 12 °C in Bern.")
    assert err == "ok: 18 chunks, 5 parts, accepted by ai 5.0.92+, 6.0.0+, 7.0.0+\n"


def test_machines_get_json() -> None:
    code, out, _ = usechat("check", "--json", "--client", "v6", "-", stdin='{"type":"start"}\n')
    assert (code, json.loads(out)) == (
        1,
        {
            "ok": False,
            "chunks": 1,
            "parts": 0,
            "clients": ["5.0.0", "6.0.0", "7.0.0"],
            "violation": {
                "line": 1,
                "chunk": "",
                "rule": "no-end",
                "problem": "A stream that stops without `finish`, `abort` or `error`.",
                "remedy": "End every stream with one of the three.",
            },
        },
    )
    code, out, _ = usechat("check", "--json", "--message", str(SAMPLE))
    assert (code, json.loads(out)["message"]["role"]) == (0, "assistant")


@pytest.mark.parametrize(
    "arguments", [["check"], ["check", "no-such-file"], ["check", str(SAMPLE), "--client", "v4"], ["nonsense"]]
)
def test_wrong_usage_gives_exit_2_and_leaves_stdout_empty(arguments: list[str]) -> None:
    code, out, err = usechat(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: " in err


def test_an_event_without_end_is_refused_as_input(tmp_path: Path) -> None:
    large = tmp_path / "large.sse"
    large.write_bytes(b"data: " + b"x" * (33 * 1024 * 1024))
    code, _, err = usechat("check", str(large))
    assert (code, "Error" in err) == (2, True)


def test_the_version_is_told() -> None:
    assert usechat("--version") == (0, "usechat 0.1.0\n", "")


def test_without_its_extra_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("typer", "rich") or "usechat.cli." in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == "The usechat command needs typer. Install it with: pip install 'usechat[cli]'"
