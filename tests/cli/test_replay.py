import socket
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from support.loopback import USECHAT, free_port, running, until
from usechat.cli.app import app
from usechat.testing import collect

RECORDING = (
    '{"usechat": "recording", "request": {"id": "1"}, "continues": null}\n'
    '{"at": 0, "chunk": {"type": "start", "messageId": "1"}}\n'
    '{"at": 5, "chunk": {"type": "finish"}}\n'
)


def test_every_message_is_answered_with_the_recording(tmp_path: Path) -> None:
    (tmp_path / "turn.jsonl").write_text(RECORDING, "utf-8")
    port = free_port()
    with running([*USECHAT, "replay", "turn.jsonl", "--port", str(port)], tmp_path) as process:
        url = f"http://127.0.0.1:{port}/api/chat"
        assert process.first_line() == f"usechat replays turn.jsonl at {url}\n"
        until(lambda: httpx.get(f"{url}/1/messages").json() == [], process)
        origin = {"origin": "http://localhost:5173"}
        answers = [httpx.post(url, json={}, headers=origin) for _ in range(2)]
        chunks = [collect(answer.content) for answer in answers]
        # A page that shows both tells them apart by their ids.
        ids = [start.pop("messageId") for start, _ in chunks]
        assert chunks == [[{"type": "start"}, {"type": "finish"}]] * 2
        assert len({*ids, "1"}) == 3
        assert httpx.get(f"{url}s").json() == {"chats": []}
        assert httpx.delete(f"{url}/1").status_code == 204
        assert answers[0].headers["access-control-allow-origin"] == "*"
        assert httpx.get(f"{url}/1/stream").status_code == httpx.post(f"{url}/1/stop").status_code == 204
        assert httpx.get(f"{url}/1/messages", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "none.jsonl cannot be read: No such file or directory."), ("{}", "is not a recording of a turn")],
)
def test_what_is_no_recording_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("none.jsonl").write_text(content, "utf-8")
    result = CliRunner().invoke(app, ["replay", "none.jsonl"])
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_a_port_that_is_taken_is_told_before_anything_else(tmp_path: Path) -> None:
    file = tmp_path / "turn.jsonl"
    file.write_text(RECORDING, "utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["replay", str(file), "--port", str(port)])
    sentence = f"Port {port} of 127.0.0.1 is in use. Choose another with --port or USECHAT_PORT.\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", sentence)


def test_what_is_no_path_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "turn.jsonl"
    file.write_text(RECORDING, "utf-8")
    result = CliRunner().invoke(app, ["replay", str(file), "--path", "chat"])
    assert (result.exit_code, result.stderr) == (2, "'chat' is not a path such as /api/name.\n")
