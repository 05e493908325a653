import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from support.hang import HANG_SECONDS
from support.loopback import (
    ABORTED,
    FINISHED,
    INSTALLED_USECHAT,
    STEP,
    USECHAT,
    Process,
    answer_status,
    ask,
    asking,
    free_port,
    last_two,
    parts,
    read_until,
    running,
    text_part,
    until,
)
from usechat.cli import main
from usechat.cli.listening import configure, listen
from usechat.cli.options import ListenSettings

HELLO = Path(__file__).parents[2] / "examples" / "hello"

AGENT = """\
import asyncio
import pathlib

from starlette.responses import PlainTextResponse

NUMBER = 1

async def agent(chat):
    yield f"You said: {chat.text}"

async def client(chat):
    yield chat.client

async def wait(chat):
    yield "I begin"
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
    yield ", I end"

async def flood(chat):
    while True:
        yield "x" * 100_000

async def asgi(scope, receive, send):
    await PlainTextResponse("an app")(scope, receive, send)

class Agent:
    def __init__(self, chat):
        pass
"""

BANNER = """\
usechat serves agents:agent at {url}

  {page} is a page to talk to it.

  curl -N {url} -H 'content-type: application/json' \\
    -d '{{"id": "1", "message": {{"id": "1", "role": "user", "parts": [{{"type": "text", "text": "Hello"}}]}}}}'

  const chat = useChat({{ transport: new DefaultChatTransport({{ api: '{url}' }}) }})

Chats are kept in usechat.db.
Nobody has to sign in, so only this computer can connect.
Pages of another origin need --cors, such as --cors http://localhost:3000.

"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(AGENT)
    return tmp_path


@contextmanager
def serve(
    folder: Path, *arguments: str, command: Sequence[str] = USECHAT, **environ: str
) -> Generator[tuple[Process, str], None, None]:
    """The running command, and the URL that its banner names."""
    with running([*command, "serve", *arguments, "--port", "0"], folder, **environ) as process:
        line = process.first_line()
        assert " at http" in line, line + process.errors()
        yield process, line.rpartition(" at ")[2].strip()


class Refused(NamedTuple):
    code: object
    out: str
    err: str


Refuse = Callable[..., Refused]


@pytest.fixture
def refuse(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Generator[Refuse]:
    """Runs the command in this process, up to where it gives up: at the latest at a port that is in use."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, **environ: str) -> Refused:
        monkeypatch.setattr(sys, "argv", ["usechat", "serve", *arguments])
        with monkeypatch.context() as patched:
            for name, value in environ.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as caught:
                main()
        out, err = capsys.readouterr()
        return Refused(caught.value.code, out, err)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("USECHAT_PORT", str(taken.getsockname()[1]))
        yield run
    sys.modules.pop("agents", None)


def end(process: Process) -> tuple[int, str]:
    process.send(signal.SIGTERM)
    return process.wait()


@pytest.mark.anyio
async def test_a_small_frame_does_not_wait_for_the_one_before_to_be_acknowledged() -> None:
    accepted: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

    def look(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection: socket.socket = writer.get_extra_info("socket")
        options = (socket.TCP_NODELAY, socket.TCP_NOTSENT_LOWAT)
        accepted.set_result([connection.getsockopt(socket.IPPROTO_TCP, option) for option in options])
        writer.close()

    listener = listen(ListenSettings(port=0))
    async with await asyncio.start_server(look, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        no_delay, unsent = await asyncio.wait_for(accepted, HANG_SECONDS)
        assert no_delay
        assert unsent == 128 * 1024
        writer.close()


def test_a_silent_socket_is_pinged_before_a_proxy_cuts_it_off() -> None:
    config = configure(lambda: pytest.fail("Nobody asks."), "text")
    assert config.ws_ping_interval == 15


def test_an_agent_is_served_with_a_banner_that_says_how_to_connect(folder: Path) -> None:
    with serve(folder, "agents:agent", command=[INSTALLED_USECHAT]) as (process, url):
        assert parts(ask(url).text) == [STEP, text_part("You said: Hello")]
        code, banner = end(process)
    first, *rest = BANNER.format(url=url, page=url.removesuffix("api/chat")).splitlines(keepends=True)
    assert (code, first + banner) == (0, first + "".join(rest))
    assert sorted(file.name for file in folder.glob("*.db*")) == ["usechat.db"]


def turn_lines(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if "outcome" in line]


def test_each_turn_is_a_line_in_the_log_without_what_was_said(folder: Path) -> None:
    with serve(folder, "agents:agent", "--history", "sqlite://") as (process, url):
        ask(url)
        end(process)
        lines = turn_lines(process.errors())
    line = re.compile(r"INFO: +turn=\S+ chat=chat outcome=done ttfb=[0-9.]+ chunks=7 bytes=[0-9]+ duration=[0-9.]+")
    assert len(lines) == 1
    assert line.fullmatch(lines[0]), lines


def test_the_log_is_json_if_wanted_whoever_writes_to_it(folder: Path) -> None:
    (folder / "noisy.py").write_text(
        "import logging, warnings\n\nasync def agent(chat):\n    logging.getLogger('mine').warning('two\\nlines')\n"
        "    warnings.warn('beware')\n    yield 'Hi'\n"
    )
    with serve(folder, "noisy:agent", "--history", "sqlite://", "--log-format", "json") as (process, url):
        ask(url)
        end(process)
        errors = process.errors()
    logged = [json.loads(line) for line in errors.splitlines()]
    assert [line["message"] for line in logged if line["logger"] == "mine"] == ["two\nlines"]
    assert [line["logger"] for line in logged if "beware" in line["message"]] == ["py.warnings"]
    (turn,) = [line for line in logged if "outcome" in line]
    assert (turn["chat"], turn["outcome"], turn["chunks"], turn["level"]) == ("chat", "done", 7, "info")
    assert 0 < turn["ttfb"] <= turn["duration"] < HANG_SECONDS
    assert "Hello" not in errors


def test_an_error_of_a_module_is_shown_without_ours(folder: Path, refuse: Refuse) -> None:
    (folder / "unclosed.py").write_text("def agent(chat:\n    yield 1\n")
    (folder / "raises.py").write_text("def make():\n    return [][1]\n\nagent = make()\n")
    (folder / "lacks.py").write_text("import no_such_package\n")
    code, out, err = refuse("unclosed:agent")
    assert (code, out) == (2, "")
    assert err.startswith("  File ")
    assert (err.splitlines()[-1], "usechat" in err) == ("SyntaxError: '(' was never closed", False)
    code, _, err = refuse("raises:agent")
    assert (code, err.splitlines()[-1], "usechat" in err, "importlib" in err) == (
        2,
        "IndexError: list index out of range",
        False,
        False,
    )
    assert [line.rpartition(", in ")[2] for line in err.splitlines() if "File" in line] == ["<module>", "make"]
    assert refuse("lacks:agent").err.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_package'"


STRIPPING_NGINX = """\
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location /agent/ {{ proxy_pass {url}/; proxy_set_header Host $http_host; }}
  }}
}}
"""


def test_the_page_behind_a_proxy_that_strips_a_prefix_calls_the_chat_there(folder: Path) -> None:
    port = free_port()
    with serve(folder, "agents:agent", "--allowed-hosts", "127.0.0.1") as (_, chat):
        url = chat.removesuffix("/api/chat")
        config = folder / "nginx.conf"
        config.write_text(STRIPPING_NGINX.format(folder=folder, port=port, url=url))
        path = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"
        with running(["nginx", "-e", f"{folder}/error.log", "-c", str(config)], folder, PATH=path) as nginx:
            outside = f"http://127.0.0.1:{port}"
            settings = f"{outside}/agent/page/settings"
            until(lambda: httpx.get(settings, timeout=HANG_SECONDS).status_code == 200, nginx)
            [agent] = httpx.get(settings, timeout=HANG_SECONDS).json()["agents"]
            called = str(httpx.URL(f"{outside}/agent/").join(agent["path"]))
            assert parts(ask(called).text) == [STEP, text_part("You said: Hello")]


ROOTED = """
from starlette.responses import PlainTextResponse

async def app(scope, receive, send):
    if scope["type"] == "http":
        await PlainTextResponse(scope["root_path"])(scope, receive, send)
"""


@pytest.mark.parametrize("flags", [[], ["--reload"], ["--workers", "2"]])
def test_an_app_knows_the_prefix_that_a_proxy_takes_off(folder: Path, flags: list[str]) -> None:
    (folder / "rooted.py").write_text(ROOTED, encoding="utf-8")
    with serve(folder, "rooted:app", "--root-path", "/agent", *flags) as (_, url):
        assert httpx.get(url, timeout=HANG_SECONDS).text == "/agent"


def test_a_root_path_that_is_none_is_refused(refuse: Refuse) -> None:
    for given in ("agent", "/agent/", "/"):
        assert refuse("agents:agent", "--root-path", given) == (
            2,
            "",
            f"{given!r} is not a --root-path such as /agent.\n",
        )


def test_flags_win_over_the_environment(folder: Path) -> None:
    environ = {"USECHAT_CLIENT": "v5", "USECHAT_PATH": "/env", "USECHAT_HISTORY": "sqlite://", "USECHAT_PORT": "1"}
    with serve(folder, "agents:client", "--path", "/flag", **environ) as (process, url):
        assert url.endswith("/flag")
        assert parts(ask(url).text) == [STEP, text_part("v5")]
        assert end(process)[1].count("Chats are kept in memory.\n") == 1
    with serve(folder, "agents:client", "--client", "v7", "--history", "sqlite://", **environ) as (_, url):
        assert url.endswith("/env")
        assert parts(ask(url).text) == [STEP, text_part("v7")]


def test_chats_can_be_left_to_the_pages(folder: Path, refuse: Refuse) -> None:
    with serve(folder, "agents:agent", "--history", "client", USECHAT_SECRET="s" * 32) as (process, url):
        assert parts(ask(url).text) == [STEP, text_part("You said: Hello")]
        assert [line for line in process.errors().splitlines() if "outcome=" not in line] == [
            "INFO:     chats are kept by the pages, turns in memory"
        ]
        assert end(process)[1].count("Chats are not kept: pages send all of their messages.\n") == 1
    with serve(folder, "agents:agent", USECHAT_HISTORY="client") as (process, _):
        assert process.errors().startswith("approvals are signed with a secret that only this process has")
    assert list(folder.glob("*.db*")) == []
    short = refuse("agents:agent", "--history", "client", USECHAT_SECRET="short")  # noqa: S106
    assert short.err == "The approval secret must have at least 32 bytes.\n"


def test_pages_of_the_named_origins_may_call(folder: Path) -> None:
    origins = ["http://localhost:3000", "https://chat.example"]

    def allowed(url: str) -> list[str | None]:
        answers = [ask(url, headers={"origin": origin}) for origin in [*origins, "http://evil.example"]]
        return [answer.headers.get("access-control-allow-origin") for answer in answers]

    with serve(folder, "agents:agent", "--cors", origins[0], "--cors", origins[1]) as (process, url):
        assert allowed(url) == [*origins, None]
        assert "--cors" not in end(process)[1]
    with serve(folder, "agents:agent", USECHAT_CORS=" ".join(origins)) as (_, url):
        assert allowed(url) == [*origins, None]


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost"])
def test_a_served_agent_goes_by_the_names_of_this_computer_only(folder: Path, host: str) -> None:
    with serve(folder, "agents:agent", "--host", host, "--history", "sqlite://") as (_, url):
        assert ask(url).status_code == 200
        rebound = ask(url, headers={"host": "evil.example"})
        assert (rebound.status_code, rebound.text) == (400, "Invalid host header")
        assert [chat["id"] for chat in httpx.get(f"{url}s", timeout=HANG_SECONDS).json()["chats"]] == ["chat"]


def test_a_proxy_may_give_a_served_agent_other_names(folder: Path) -> None:
    options = ["--allowed-hosts", "chat.example", "--allowed-hosts", "*.test", "--history", "sqlite://"]
    with serve(folder, "agents:agent", *options) as (_, url):
        names = ("chat.example", "a.test", "localhost", "evil.example")
        assert [ask(url, headers={"host": name}).status_code for name in names] == [200, 200, 200, 400]
        # Others than the people of this computer may come by the proxy.
        assert httpx.get(f"{url}s", timeout=HANG_SECONDS).status_code == 403


def test_an_app_of_ones_own_is_served_as_it_is_at_any_address(folder: Path) -> None:
    with serve(folder, "agents:asgi", "--host", "0.0.0.0") as (process, url):  # noqa: S104
        assert re.fullmatch(r"http://localhost:\d+", url)
        assert httpx.get(url, headers={"host": "chat.example"}, timeout=HANG_SECONDS).text == "an app"
        assert end(process) == (0, "\n")
    assert list(folder.glob("*.db*")) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere:agent"], "There is no module nowhere in this directory or among the installed packages."),
        (["agents.py:agent"], "There is no module agents.py in this directory or among the installed packages."),
        (["agents:nobody"], "The module agents has no nobody."),
        (["agents"], "'agents' does not have the form module:agent."),
        (["./agents.py:agent"], "'./agents.py:agent' does not have the form module:agent."),
        (["agents:NUMBER"], "agents:NUMBER is neither an agent, such as a function of the chat, nor an ASGI app."),
        (["agents:Agent"], "agents:Agent is neither an agent, such as a function of the chat, nor an ASGI app."),
        (["agents:asyncio"], "agents:asyncio is neither an agent, such as a function of the chat, nor an ASGI app."),
        (
            ["agents:agent", "--host", "0.0.0.0"],  # noqa: S104
            "Without authentication, only this computer may use an agent, so it cannot listen at 0.0.0.0. Serve an app "
            "of your own instead, made by create_app(agent, authenticate=...).",
        ),
        (["agents:agent", "--path", "chat"], "'chat' is not a path such as /api/name."),
        (
            ["agents:agent", "--cors", "localhost"],
            "'localhost' is not an origin such as https://chat.example or http://localhost:3000.",
        ),
        (
            ["agents:agent", "--history", "mysql://x"],
            "The database URL must be one of SQLite or PostgreSQL, such as sqlite:///name.db or "
            "postgresql://host/name.",
        ),
        (
            ["agents:agent", "--history", "sqlite:///no/such/folder/chats.db"],
            "The chats cannot be kept in no/such/folder/chats.db: unable to open database file.",
        ),
        (
            ["agents:agent", "--workers", "2"],
            "Several workers need a shared store: --store redis://HOST.",
        ),
        (
            ["agents:agent", "--workers", "2", "--store", "redis://localhost", "--history", "sqlite://"],
            "Several workers need a shared history: --history sqlite:///FILE, or a PostgreSQL.",
        ),
        (
            ["agents:agent", "--workers", "2", "--reload"],
            "--reload is for one process. Leave out --workers.",
        ),
        (
            ["agents:agent", "--store", "redis://localhost"],
            "Turns on Redis need a secret of at least 32 bytes that all workers share: set approval_secret (secret for "
            "sessions_gateway), or USECHAT_SECRET for a usechat command.",
        ),
        (
            ["agents:agent", "--store", "file:turns"],
            "The store of turns must be memory, or the URL of a Redis such as redis://localhost.",
        ),
        (
            ["agents:asgi", "--path", "/chat", "--grace", "1"],
            "agents:asgi is an app of your own, so set --path, --grace where you make it.",
        ),
    ],
)
def test_what_cannot_be_served_gives_one_sentence_and_exit_2(
    refuse: Refuse, arguments: list[str], sentence: str
) -> None:
    assert refuse(*arguments) == (2, "", f"{sentence}\n")


@pytest.mark.parametrize(
    ("option", "value"),
    [("lease", "0"), ("workers", "0"), ("client", "v4"), ("port", "70000"), ("grace", "-1"), ("grace", "inf")],
)
def test_a_wrong_value_is_refused_with_the_names_of_its_flag_and_variable(
    refuse: Refuse, option: str, value: str
) -> None:
    variable = f"USECHAT_{option.upper()}"
    for refused in (refuse("agents:agent", f"--{option}", value), refuse("agents:agent", **{variable: value})):
        assert (refused.code, refused.out) == (2, "")
        assert f"Invalid value for '--{option}' (env var: '{variable}')" in refused.err


def test_an_address_of_the_environment_is_checked_like_one_of_the_flag(refuse: Refuse) -> None:
    assert refuse("agents:agent", USECHAT_HOST="::").err.startswith(
        "Without authentication, only this computer may use an agent, so it cannot listen at ::."
    )


def test_a_port_that_is_taken_is_told(refuse: Refuse) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refuse("agents:agent", "--port", str(port)) == (
            2,
            "",
            f"Port {port} of 127.0.0.1 is in use. Choose another with --port or USECHAT_PORT.\n",
        )


def test_a_turn_that_ends_within_the_grace_reaches_its_client_whole(folder: Path) -> None:
    with serve(folder, "agents:wait", "--grace", str(HANG_SECONDS)) as (process, url):
        with asking(url) as lines:
            first = read_until(lines, "I begin")
            process.send(signal.SIGTERM)
            ready = url.replace("/api/chat", "/readyz")
            until(lambda: httpx.get(ready, timeout=HANG_SECONDS).status_code == 503, process)
            refused = ask(url, chat="another")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            (folder / "go").touch()
            rest = "\n".join(lines)
        assert parts(f"{first}\n{rest}\n\n") == [STEP, text_part("I begin, I end")]
        assert last_two(rest) == FINISHED
        assert process.wait()[0] == 0
        kept, told, turn = process.errors().splitlines()
        assert kept == "INFO:     chats are kept in usechat.db, turns in memory"
        assert told == f"INFO:     Shutting down: answers that are being written get {HANG_SECONDS:g} seconds."
        assert "outcome=done" in turn


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_turn_that_takes_longer_than_the_grace_ends_with_abort(folder: Path, number: signal.Signals) -> None:
    with serve(folder, "agents:wait", "--grace", "0.2") as (process, url):
        with asking(url) as lines:
            first = read_until(lines, "I begin")
            process.send(number)
            rest = "\n".join(lines)
        assert parts(f"{first}\n{rest}\n\n") == [STEP, text_part("I begin")]
        assert last_two(rest) == ABORTED
        assert process.wait()[0] == 0
    (folder / "go").touch()
    with serve(folder, "agents:wait") as (_, url):
        messages = httpx.get(f"{url}/chat/messages", timeout=HANG_SECONDS).json()
    assert [message["parts"] for message in messages] == [
        [{"type": "text", "text": "Hello"}],
        [STEP, text_part("I begin")],
    ]


def test_a_second_signal_ends_the_grace(folder: Path) -> None:
    with serve(folder, "agents:wait", "--grace", "3600") as (process, url):
        with asking(url) as lines:
            read_until(lines, "I begin")
            process.send(signal.SIGTERM)
            until(lambda: answer_status(url, chat="another") == 503, process)
            process.send(signal.SIGTERM)
            assert last_two("\n".join(lines)) == ABORTED
        assert process.wait()[0] == 0


def test_a_reader_that_does_not_read_does_not_keep_the_server(folder: Path) -> None:
    full = 'usechat_turns_ended_total{outcome="error"} 1.0\n'
    with serve(folder, "agents:flood", "--grace", "0") as (process, url), asking(url):
        until(lambda: full in httpx.get(url.replace("/api/chat", "/metrics"), timeout=HANG_SECONDS).text, process)
        assert end(process)[0] == 0


def test_a_change_of_a_file_aborts_what_runs_and_starts_the_server_again(folder: Path) -> None:
    def edit() -> None:
        (folder / "agents.py").write_text(AGENT.replace("I begin", "I begin anew"))

    with serve(folder, "agents:wait", "--reload", "--grace", "3600") as (process, url):
        with ThreadPoolExecutor() as pool, asking(url) as lines:
            read_until(lines, "I begin")
            rest = pool.submit("\n".join, lines)
            # Again and again, because a change that comes before the first look at the files is not seen as one.
            until(lambda: edit() or rest.done(), process)
            assert last_two(rest.result()) == ABORTED
        (folder / "go").touch()
        until(lambda: '"I begin anew"' in ask(url).text, process)
        assert end(process)[0] == 0


def test_the_hello_example_reasons_calls_a_tool_and_answers(folder: Path) -> None:
    with serve(HELLO, "agent:agent", "--history", f"sqlite:///{folder}/chats.db") as (_, url):
        reasoning, *rest = parts(ask(url, "What do you hear?").text)[1:]
    assert (reasoning["type"], reasoning["state"]) == ("reasoning", "done")
    assert rest == [
        {
            "type": "tool-count_words",
            "toolCallId": "count",
            "state": "output-available",
            "input": {"text": "What do you hear?"},
            "output": {"words": 4},
        },
        STEP,
        text_part("You said: What do you hear? "),
    ]


def test_without_its_extra_the_command_says_what_to_install(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "usechat.cli.launch", raising=False)
    monkeypatch.delitem(sys.modules, "usechat.cli.listening", raising=False)
    sentence = "usechat serve needs uvicorn. Install it with: pip install 'usechat[server]'\n"
    assert refuse("agents:agent") == (2, "", sentence)
