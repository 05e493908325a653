import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jwt
import pytest
from typer.testing import CliRunner

from support.hang import HANG_SECONDS
from support.loopback import USECHAT, Process, free_port, message, parts, running
from support.redis_server import SECRET, RedisServer
from support.tokens import ED, claims, signed
from usechat.cli import main
from usechat.cli.app import app
from usechat.session_agent import SessionAgent, SessionSettings

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "agent-ops.md").read_text(encoding="utf-8")
DIRECTORY = "sqlite:///sessions.db"
REQUIRED = ("--upstream", "ws://localhost:8787", "--directory", DIRECTORY)
JWTS = ("--audience", "chat", "--issuer", "https://id.example")
NOTHING_ELSE = "The address of the upstream may have a host, a port and a path, and nothing else."
EMPTY = "The token of --upstream-token or USECHAT_UPSTREAM_TOKEN is empty: the upstream would get each user's own."
BIND = "(while attempting to bind on address ('192.0.2.1', {}))"
ON = {"ENABLE_AI_SDK_ADAPTER": "true"}


class Ended(NamedTuple):
    code: object
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def usechat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """The command as it is typed, in this process and in a folder of its own, up to where it ends.

    A command that serves ends at a port that is in use.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, **environ: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["usechat", *arguments])
        with monkeypatch.context() as patched:
            for name, value in environ.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as caught:
                main()
        out, err = capsys.readouterr()
        return Ended(caught.value.code, out, err)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("USECHAT_PORT", str(taken.getsockname()[1]))
        yield run


@pytest.fixture
def token(usechat: Run) -> str:
    """That of ana, who owns the session s1 of the directory here."""
    for command in (["init"], ["add-user", "ana"], ["add-session", "s1", "--owner", "ana"]):
        assert usechat("sessions", *command, "--directory", DIRECTORY) == (0, "", "")
    return usechat("sessions", "token", "ana", "--directory", DIRECTORY).out.strip()


@contextmanager
def gateway(folder: Path, *arguments: str, **environ: str) -> Generator[tuple[Process, str], None, None]:
    """The running command, and the URL that its banner names."""
    with running([*USECHAT, "gateway", *arguments, "--port", "0"], folder, **environ) as process:
        line = process.first_line()
        assert " at http" in line, line + process.errors()
        yield process, line.rpartition(" at ")[2].strip()


def end(process: Process) -> str:
    process.send(signal.SIGTERM)
    code, output = process.wait()
    assert code == 0, process.errors()
    return output


def test_the_quick_start_of_the_guide_works_word_by_word(usechat: Run, tmp_path: Path) -> None:
    install, agent, keep, ask = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)[:4]
    assert install == "pip install 'usechat[cli,server]'\n"
    exports = dict(re.findall(r"^export (\w+)=(\S+)$", keep, re.MULTILINE))
    *sessions, serve = [line for line in keep.splitlines() if line.startswith("usechat ")]
    assert exports == {"USECHAT_DIRECTORY": DIRECTORY, **ON}
    assert [usechat(*line.split()[1:], **exports) for line in sessions] == [(0, "", "")] * len(sessions)

    port, upstream = str(free_port()), str(free_port())
    with (
        running([*USECHAT, *agent.replace("8787", upstream).split()[1:]], tmp_path) as other,
        running(
            [*USECHAT, *serve.replace("8787", upstream).split()[1:]], tmp_path, USECHAT_PORT=port, **exports
        ) as process,
    ):
        assert other.first_line(), other.errors()
        url = f"http://127.0.0.1:{port}/api/sessions"
        assert process.first_line() == f"usechat serves the sessions of ws://127.0.0.1:{upstream} at {url}\n"
        export, make, *curl = ask.replace("8000", port).splitlines()
        assert export == f"export USECHAT_DIRECTORY={DIRECTORY}"
        found = re.fullmatch(r"TOKEN=\$\(usechat (.*)\)", make)
        assert found is not None
        token = usechat(*found[1].split(), **exports).out.strip()
        body = subprocess.run(
            ["/bin/sh", "-c", "\n".join(curl)],
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=True,
            env={**os.environ, "TOKEN": token},
        ).stdout
        assert "event: message-start\ndata: " in body
        kinds = [part["type"] for part in parts(body)]
        assert {"text", "data-agent-status"} < set(kinds)
        assert [kind for kind in kinds if kind.startswith("tool-")] != []
        banner = end(process)
        assert token not in banner + process.errors()
    assert "-d '{" in banner
    assert "sessions.db says who may use which session: usechat sessions.\n" in banner
    assert "--cors" in banner
    assert "is off" not in banner


def test_without_the_switch_all_is_404_and_the_banner_says_so(token: str, tmp_path: Path) -> None:
    with gateway(tmp_path, *REQUIRED, "--host", "0.0.0.0") as (process, url):  # noqa: S104
        assert re.fullmatch(r"http://localhost:\d+/api/sessions", url)
        headers = {"authorization": f"Bearer {token}"}
        answer = httpx.post(f"{url}/s1/chat", json=message("Hello"), headers=headers, timeout=HANG_SECONDS)
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
        assert "The gateway is off and answers 404: ENABLE_AI_SDK_ADAPTER=true switches it on.\n" in end(process)


class _Caller:
    """Asks the gateway at a URL, with the headers of a user."""

    def __init__(self, url: str, http: httpx.AsyncClient, headers: dict[str, str]) -> None:
        self.url = url
        self.http = http
        self.headers = headers

    @asynccontextmanager
    async def asking(self, text: str, chat: str) -> AsyncGenerator[httpx.Response]:
        url, json = f"{self.url}/s1/chat", message(text, chat)
        async with self.http.stream("POST", url, json=json, headers=self.headers) as response:
            yield response

    async def ask(self, text: str, chat: str) -> str:
        async with self.asking(text, chat) as response:
            await response.aread()
            assert response.status_code == 200, response.text
            return response.text


def write_keys(folder: Path) -> None:
    key: dict[str, Any] = jwt.get_algorithm_by_name("EdDSA").to_jwk(ED.public_key(), as_dict=True)
    (folder / "jwks.json").write_text(json.dumps({"keys": [{**key, "alg": "EdDSA"}]}))


@pytest.mark.anyio
async def test_each_option_does_what_it_says(token: str, tmp_path: Path) -> None:
    write_keys(tmp_path)
    environ = {
        **ON,
        "USECHAT_UPSTREAM_TOKEN": "the-gateways-own",
        "USECHAT_DIRECTORY": DIRECTORY,
        "USECHAT_CORS": "http://localhost:3000",
        "USECHAT_EVENT_NAMES": "false",
        "USECHAT_FORWARD": "title",
        "USECHAT_PATH": "/env",
    }
    options = shlex.split(
        "--path /flag --idle 1 --keep-alive 1 --linger 100 --queue 0 --patience 1 --forward git-state --client v6 "
        "--transient-status --jwks jwks.json --audience chat --issuer https://id.example --log-format json --grace 0"
    )
    async with (
        asyncio.timeout(HANG_SECONDS),
        SessionAgent(SessionSettings(pace=0), token="the-gateways-own").serving() as agent,  # noqa: S106
        httpx.AsyncClient(timeout=HANG_SECONDS) as http,
    ):
        with gateway(tmp_path, "--upstream", agent.url, *options, **environ) as (process, url):
            assert url.endswith("/flag")
            ana = _Caller(url, http, {"authorization": f"Bearer {token}", "origin": "http://localhost:3000"})
            await _check_streams(ana)
            by_jwt = _Caller(url, http, {"authorization": f"Bearer {signed(claims(sub='ana'))}"})
            assert "You said: Hello" in parts(await by_jwt.ask("Hello", "jwt"))[-1]["text"]
            assert '{"type":"error"' in await ana.ask("hang", "idle")
            await _check_waiting(ana)
            # It ends in the midst of a question, which gets no grace.
            await asyncio.to_thread(end, process)
            errors = process.errors()
        assert {received.user for received in agent.received("prompt")} == {"ana"}
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line["session"] for line in lines if line.get("outcome") == "error"] == ["s1"]
    assert [secret for secret in (token, "the-gateways-own") if secret in errors] == []


async def _check_streams(ana: _Caller) -> None:
    async with ana.asking("noise", "noise") as response:
        assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
        body = (await response.aread()).decode()
    assert "\nevent:" not in body
    kinds = [part["type"] for part in parts(body)]
    # The option goes before the environment.
    assert ("data-git-state" in kinds, "data-title" in kinds) == (True, False)
    assert '"type":"data-agent-status"' in body
    assert "data-agent-status" not in kinds


async def _check_waiting(ana: _Caller) -> None:
    async with ana.asking("question", "asked") as response:
        lines = response.aiter_lines()
        await until_line(lines, "data-question")
        async with ana.asking("Hello", "asked") as second:
            assert second.status_code == 409
        await until_line(lines, ": ")
    # It goes on, although nobody reads it any more.
    async with ana.http.stream("GET", f"{ana.url}/s1/chat/asked/stream", headers=ana.headers) as again:
        assert again.status_code == 200
        await until_line(again.aiter_lines(), "data-question")


async def until_line(lines: AsyncIterator[str], wanted: str) -> None:
    async for line in lines:
        if wanted in line.partition("{")[0] or f'"type":"{wanted}"' in line:
            return
    raise AssertionError(f"{wanted} did not come")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--upstream", "http://localhost"], "'http://localhost' is not the address of an upstream, such as {0}."),
        (["--upstream", "ws://"], "'ws://' is not the address of an upstream, such as {0}."),
        (["--upstream", "ws://[::1"], "The upstream is not an address, such as {0}."),
        (["--upstream", "ws://localhost:99999"], "The upstream is not an address, such as {0}."),
        (["--upstream", "ws://me:secret@localhost"], NOTHING_ELSE),
        (["--upstream", "ws://localhost/?token=secret"], NOTHING_ELSE),
        (
            ["--upstream-token", "two words"],
            "The upstream's token holds what no header can carry, such as a space or a line break.",
        ),
        (["--upstream-token="], EMPTY),
        (
            ["--directory", "sqlite://sessions.db"],
            "The file of SQLite comes after three slashes, as in sqlite:///name.db.",
        ),
        (["--directory", "sqlite:///none.db"], "There is no file none.db. usechat sessions init creates it."),
        (
            ["--directory", "sqlite://"],
            "A directory in memory is gone when the command ends. Name a file, such as sqlite:///sessions.db.",
        ),
        (
            ["--directory", "mysql://x"],
            "The database URL must be one of SQLite or PostgreSQL, such as sqlite:///name.db or "
            "postgresql://host/name.",
        ),
        (["--directory", "sqlite:///jwks.json"], "The directory in jwks.json cannot be used: file is not a database."),
        (["--path", "sessions"], "'sessions' is not a path such as /api/name."),
        (
            ["--cors", "localhost"],
            "'localhost' is not an origin such as https://chat.example or http://localhost:3000.",
        ),
        (["--jwks", "jwks.json"], "Give --jwks, --audience and --issuer together, or none of them."),
        (["--audience", "chat"], "Give --jwks, --audience and --issuer together, or none of them."),
        ([*JWTS, "--jwks", "none.json"], "none.json cannot be read: No such file or directory."),
        ([*JWTS, "--jwks", "sessions.db"], "sessions.db: This is not a JSON Web Key Set."),
        (["--workers", "2"], "Several workers need a shared store: --store redis://HOST."),
        (["--host", "192.0.2.1"], "The server cannot listen at 192.0.2.1: Cannot assign requested address {1}."),
    ],
)
@pytest.mark.usefixtures("token")
def test_what_cannot_be_served_gives_one_sentence_and_exit_2(
    usechat: Run, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    write_keys(tmp_path)
    code, out, err = usechat("gateway", *REQUIRED, *arguments)
    assert (code, out) == (2, "")
    assert err == f"{sentence.format('ws://localhost:8787', BIND.format(os.environ['USECHAT_PORT']))}\n"


@pytest.mark.anyio
async def test_workers_share_their_turns_and_count_together(
    redis_server: RedisServer, token: str, tmp_path: Path
) -> None:
    redis_server.empty()
    environ = {**ON, "USECHAT_SECRET": SECRET, "USECHAT_DIRECTORY": DIRECTORY}
    async with (
        asyncio.timeout(HANG_SECONDS),
        SessionAgent(SessionSettings(pace=0)).serving() as agent,
        # Each request has a connection of its own, so that any of the workers gets it.
        httpx.AsyncClient(timeout=HANG_SECONDS, limits=httpx.Limits(max_keepalive_connections=0)) as http,
    ):
        options = ["--upstream", agent.url, "--store", redis_server.url, "--workers", "2", "--linger", "100"]
        with gateway(tmp_path, *options, **environ) as (process, url):
            ana = _Caller(url, http, {"authorization": f"Bearer {token}"})
            async with ana.asking("hang", "c") as response:
                async for line in response.aiter_lines():
                    if "I wait" in line:
                        break
            for _ in range(6):
                async with http.stream("GET", f"{url}/s1/chat/c/stream", headers=ana.headers) as again:
                    assert again.status_code == 200
                metrics = (await http.get(url.replace("/api/sessions", "/metrics"))).text.splitlines()
                assert {"adapter_ws_open 1.0", "adapter_ws_open_most_of_a_session 1.0"} <= set(metrics)
            assert (await http.post(f"{url}/s1/chat/c/stop", headers=ana.headers)).status_code == 204
            await agent.until(lambda: len(agent.received("abort")) == 1)
            end(process)


def test_a_token_that_is_empty_in_the_environment_is_refused(usechat: Run) -> None:
    assert usechat("gateway", *REQUIRED, USECHAT_UPSTREAM_TOKEN="") == (2, "", f"{EMPTY}\n")


@pytest.mark.usefixtures("token")
def test_a_frame_that_cannot_be_forwarded_is_refused(usechat: Run) -> None:
    refused = usechat("gateway", *REQUIRED, "--forward", "secrets")
    assert refused.code == 2
    assert refused.err.startswith("'secrets' cannot be forwarded: what can is ")


@pytest.mark.usefixtures("token")
def test_a_port_that_is_taken_is_told(usechat: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = usechat("gateway", *REQUIRED, "--port", str(port))
    sentence = f"Port {port} of 127.0.0.1 is in use. Choose another with --port or USECHAT_PORT.\n"
    assert refused == (2, "", sentence)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("idle", "0"), ("keep-alive", "0"), ("linger", "-1"), ("patience", "0"), ("queue", "-1"), ("client", "v4")],
        *[("idle", "nan"), ("keep-alive", "inf"), ("linger", "inf"), ("patience", "nan"), ("queue", "86401")],
        *[("grace", "-1"), ("grace", "inf"), ("grace", "nan"), ("grace", "86401")],
    ],
)
def test_a_wrong_value_is_refused_with_the_names_of_its_flag_and_variable(
    usechat: Run, option: str, value: str
) -> None:
    variable = f"USECHAT_{option.upper().replace('-', '_')}"
    refusals = [usechat("gateway", *REQUIRED, f"--{option}", value), usechat("gateway", *REQUIRED, **{variable: value})]
    for refused in refusals:
        assert (refused.code, refused.out) == (2, "")
        assert f"Invalid value for '--{option}' (env var: '{variable}')" in refused.err


def test_each_option_is_in_the_guide_and_can_be_set_in_the_environment() -> None:
    printed = CliRunner().invoke(app, ["gateway", "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"}).stdout
    options = set(re.findall(r"--[a-z][a-z-]+", printed)) - {"--help", "--no-event-names"}
    named = {option: f"USECHAT_{option[2:].upper().replace('-', '_')}" for option in options}
    assert set(re.findall(r"env var: (USECHAT_[A-Z_]+)", printed)) == set(named.values())
    assert "everybody on the computer can see the options of a command" in printed
    rows = [row.split("|")[1] for row in GUIDE.splitlines() if row.startswith("| `--")]
    assert {option for row in rows for option in re.findall(r"--[a-z][a-z-]+", row)} == options | {"--no-event-names"}


def test_without_the_servers_packages_it_says_what_to_install(usechat: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "usechat.cli.listening", raising=False)
    sentence = "usechat gateway needs uvicorn. Install it with: pip install 'usechat[server]'\n"
    assert usechat("gateway", *REQUIRED) == (2, "", sentence)
