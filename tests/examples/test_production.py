"""examples/production/run.py as somebody runs it: a chat on two workers behind an nginx without sticky sessions."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from websockets.sync.client import connect

from support.hang import HANG_SECONDS
from support.http_pages import metric
from support.loopback import ABORTED, last_two, message, parts, read_until

RUN: Final = Path(__file__).parents[2] / "examples" / "production" / "run.py"
CHAT: Final = re.compile(r"The chat is at (\S+)/, for the token (\w+)\n")
WORKER: Final = re.compile(r"worker-\d is (\S+), process (\d+)\n")


class Deployment:
    """What the script says of what it started."""

    def __init__(self, lines: list[str]) -> None:
        first, *workers, last = lines
        assert last == "Ctrl-C stops all.\n"
        found = CHAT.fullmatch(first)
        assert found is not None
        self.url, token = found.groups()
        self.workers = {url: int(pid) for url, pid in (WORKER.findall(line)[0] for line in workers)}
        self.http = httpx.Client(headers={"authorization": f"Bearer {token}"}, timeout=HANG_SECONDS, trust_env=False)

    def owner(self) -> str:
        """The one worker that has a turn."""
        [owner] = [url for url in self.workers if self.metric(url, "usechat_turns_running") == 1]
        return owner

    def metric(self, worker: str, name: str) -> float:
        return metric(self.http.get(f"{worker}/metrics").text, name)

    @contextmanager
    def reading(self, method: str, url: str, **options: Any) -> Generator[Iterator[str]]:
        with self.http.stream(method, url, **options) as response:
            assert response.status_code == 200, response.read()
            yield response.iter_lines()

    def asking(self, chat: str) -> Any:
        return self.reading("POST", f"{self.url}/api/chat", json=message("Hello", chat))


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    command = [sys.executable, str(RUN), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(4)]
            deployment = Deployment(lines)
            yield deployment
            deployment.http.close()
            process.send_signal(signal.SIGINT)
            assert process.wait(HANG_SECONDS) == 0
            assert process.stdout.read() == ""
            for pid in deployment.workers.values():
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)
        finally:
            process.kill()


def test_a_turn_is_resumed_and_stopped_by_the_other_worker(deployment: Deployment) -> None:
    with deployment.asking("both") as asked:
        said = read_until(asked, "3 ")
        owner = deployment.owner()
        [other] = set(deployment.workers) - {owner}
        with deployment.reading("GET", f"{other}/api/chat/both/stream") as resumed:
            replayed = read_until(resumed, "5 ")
            assert deployment.http.post(f"{other}/api/chat/both/stop").is_success
            ends = ["\n".join([said, *asked]), "\n".join([replayed, *resumed])]
    assert [last_two(end) for end in ends] == [ABORTED, ABORTED]
    assert deployment.metric(other, "usechat_turns_resumed_total") == 1
    assert deployment.metric(owner, "usechat_append_seconds_count") > 0
    assert [deployment.metric(url, "usechat_turns_running") for url in deployment.workers] == [0, 0]
    kept = [deployment.http.get(f"{url}/api/chat/both/messages").json() for url in deployment.workers]
    assert kept[0] == kept[1]
    assert [message["role"] for message in kept[0]] == ["user", "assistant"]
    assert parts(ends[0]) == parts(ends[1]) == kept[0][1]["parts"]


def test_a_worker_that_is_restarted_costs_no_message(deployment: Deployment) -> None:
    with deployment.asking("first") as asked:
        said = read_until(asked, "3 ")
        os.kill(deployment.workers[owner := deployment.owner()], signal.SIGTERM)
        while deployment.http.get(f"{owner}/readyz").status_code == 200:
            time.sleep(0.01)
        # The first of two goes to one worker and the second to the other, of which one takes no more messages.
        for chat in ("second", "third"):
            with deployment.asking(chat) as others:
                read_until(others, "1 ")
        # The turn that it has goes on, and can be stopped.
        for chat in ("first", "second", "third"):
            assert deployment.http.post(f"{deployment.url}/api/chat/{chat}/stop").is_success
        assert last_two("\n".join([said, *asked])) == ABORTED


def test_the_metrics_are_not_for_users(deployment: Deployment) -> None:
    assert deployment.http.get(f"{deployment.url}/metrics").status_code == 404


def test_a_websocket_passes_nginx(deployment: Deployment) -> None:
    url = deployment.url.replace("http", "ws", 1)
    token = deployment.http.headers["authorization"]
    with connect(f"{url}/api/chat/ws", additional_headers={"authorization": token}, proxy=None) as socket:
        assert socket.response is not None
        assert socket.response.status_code == 101
