"""The wheel, installed with each extra alone into an environment that has nothing else, does what the extra is for."""

import json
import re
import tarfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias
from zipfile import ZipFile

import httpx
import pytest
from packaging.requirements import Requirement

from support.hang import HANG_SECONDS
from support.loopback import Process, ask, message, parts, running
from support.postgres import Postgres
from support.redis_server import SECRET, RedisServer
from support.wheels import ROOT, Environment, build, metadata, packaged

README: Final = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
# The extras of frameworks, which frameworks/ tries in environments of their own.
ALONE: Final = {lock.stem for lock in (ROOT / "locks" / "frameworks").glob("*.txt") if not lock.stem.endswith("-floor")}

Install: TypeAlias = Callable[[str], Environment]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    @cache
    def install(extras: str) -> Environment:
        return Environment(tmp_path_factory.mktemp("environment"), wheel, extras)

    return install


def test_make_dist_builds_a_wheel_and_a_source_distribution_with_the_page(dist: Path, wheel: Path) -> None:
    files = packaged()
    assert "usechat/page/index.html" in files
    assert {name for name in ZipFile(wheel).namelist() if not name.endswith("/") and ".dist-info/" not in name} == files
    (sources,) = dist.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        names = {member.name.partition("/src/")[2] for member in archive if "/src/" in member.name and member.isfile()}
    assert names == files


def test_all_names_every_extra_but_those_of_frameworks_which_exclude_each_other(wheel: Path) -> None:
    about = metadata(wheel)
    (everything,) = (
        each
        for each in map(Requirement, about.requires or ())
        if each.marker is not None and each.name == "usechat" and each.marker.evaluate({"extra": "all"})
    )
    assert everything.extras == {*about.metadata.get_all("Provides-Extra", [])} - {"all"} - ALONE


def test_without_an_extra_the_readme_writes_a_message(install: Install, tmp_path: Path) -> None:
    writer = next(block for block in README if "MessageWriter" in block)
    program = f"{writer}\nimport usechat\nprint(len(lines), usechat.__version__)"
    assert install("").run("python", "-c", program, cwd=tmp_path) == (0, "8 0.1.0\n", "")


AGENT: Final = """
async def agent(chat):
    yield f"You said: {chat.text}"
"""
HELLO: Final = "from usechat import create_app" + AGENT
# With each extra: the program that makes an app, and what that says to Hello.
APPS: Final = {
    "server": (HELLO + "app = create_app(agent, page=True)", "You said: Hello"),
    "fastapi": (
        f"""
from fastapi import FastAPI
from usechat import ChatEndpoint
{AGENT}
app = FastAPI()
app.include_router(ChatEndpoint(agent).router())
""",
        "You said: Hello",
    ),
    "flows": (next(block for block in README if "OpenHarness" in block), "Too short: it has 1 words."),
    "otel": (
        """
from opentelemetry import trace
from usechat import create_app
async def agent(chat):
    yield f"{trace.get_current_span().get_span_context().trace_id:x}"
app = create_app(agent)
""",
        TRACE.removeprefix("0"),
    ),
    "langgraph": (
        """
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState, StateGraph
from usechat import create_app
def node(state):
    return {"messages": [AIMessage("You said: " + state["messages"][-1].text)]}
graph = StateGraph(MessagesState).add_node("node", node).set_entry_point("node").compile()
app = create_app(graph)
""",
        "You said: Hello",
    ),
    "deepagents": (
        """
from deepagents import create_deep_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from usechat import create_app
class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self
app = create_app(create_deep_agent(Model(messages=iter([AIMessage("Good day")])), []))
""",
        "Good day",
    ),
    "postgres": (HELLO + "import os\napp = create_app(agent, history=os.environ['URL'])", "You said: Hello"),
    "redis": (
        HELLO + f"import os\napp = create_app(agent, store=os.environ['URL'], approval_secret={SECRET!r})",
        "You said: Hello",
    ),
}
SERVE: Final = """
import socket, uvicorn
listener = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])
"""


@contextmanager
def serving(environment: Environment, cwd: Path, *command: str, **environ: str) -> Generator[str, None, None]:
    """Run a program of the environment that announces its address in its first line."""
    program = [str(environment.folder / "bin" / command[0]), *command[1:]]
    with running(program, cwd, **environment.environ, **environ) as process:
        yield _address(process)


def _address(process: Process) -> str:
    found = re.search(r"http://[\w.:]+", process.first_line())
    assert found is not None, process.errors()
    return found[0]


@pytest.mark.parametrize("extra", APPS)
def test_with_each_extra_alone_an_app_answers_a_message(
    extra: str, install: Install, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    program, said = APPS[extra]
    url = ""
    if extra == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        url = server.create_tables()
    elif extra == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        url = redis.url
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    with serving(install(extra), tmp_path, "python", "-c", program + SERVE, URL=url) as address:
        assert parts(ask(f"{address}/api/chat", headers=headers).text)[-1]["text"] == said
        if extra == "server":
            assert "<html" in httpx.get(address, timeout=HANG_SECONDS).text


def test_with_all_extras_every_module_is_imported_and_the_demo_has_all_its_agents(
    install: Install, tmp_path: Path
) -> None:
    imports = """
import pkgutil, importlib, usechat
for module in pkgutil.walk_packages(usechat.__path__, "usechat.", onerror=lambda name: print("not found:", name)):
    importlib.import_module(module.name)
"""
    everything = install("all")
    assert everything.run("python", "-c", imports, cwd=tmp_path) == (0, "", "")
    with (
        serving(everything, tmp_path, "usechat", "demo", "--port", "0") as address,
        httpx.Client(base_url=address, timeout=HANG_SECONDS) as page,
    ):
        agents = page.get("/page/settings").json()["agents"]
        answer = page.post(agents[-1]["path"], json=message("Hello"))
    assert [agent["name"] for agent in agents] == [
        "Python generator",
        "Open Harness flow",
        "Agent Ops session",
        "Deep agent",
    ]
    assert parts(answer.text)[-1]["type"] == "text"


def test_every_extra_is_tried(wheel: Path) -> None:
    assert {*APPS, *ALONE, "all", "cli"} == {*metadata(wheel).metadata.get_all("Provides-Extra", [])}


# With some extras: each command that needs another one, what it says needs it, and that extra.
COMMANDS: Final = {
    "cli": [
        ("serve module:agent", "usechat serve", "server"),
        ("demo", "usechat demo", "server"),
        ("replay FILE --port 0", "usechat replay", "server"),
        ("session-agent --port 0", "usechat session-agent", "server"),
        ("sessions init --directory sqlite://", "usechat sessions", "server"),
        ("gateway --upstream ws://a --directory sqlite://", "usechat gateway", "server"),
        ("doctor --store redis://a", "usechat doctor", "redis"),
    ],
    "cli,server": [
        ("serve flow.yaml", "A flow", "flows"),
        ("serve hello:agent --store redis://a", "A store on Redis", "redis"),
        ("serve hello:agent --history postgresql://a/b", "PostgreSQL", "postgres"),
        ("serve graph:graph", "The module graph", "langgraph"),
        ("serve deep:agent", "The module deep", "deepagents"),
        ("serve fast:app", "The module fast", "fastapi"),
        ("doctor --store redis://a", "usechat doctor", "redis"),
    ],
}
MODULES: Final = {
    "hello": AGENT,
    "graph": "import langgraph.graph",
    "deep": "import deepagents",
    "fast": "import fastapi",
}
INVOKE: Final = """
import json, shlex, sys
from typer.testing import CliRunner
from usechat.cli.app import app
results = [CliRunner().invoke(app, shlex.split(line)) for line in sys.argv[1:]]
print(json.dumps([[result.exit_code, result.output] for result in results]))
"""


def sentence(what: str, extra: str, package: str = "…") -> str:
    return f"{what} needs {package}. Install it with: pip install 'usechat[{extra}]'"


def unnamed(text: str) -> str:
    """The sentence without the package that was looked for first, which may be any of the extra's."""
    return re.sub(r" needs \w+\.", " needs ….", text)


@pytest.mark.parametrize("extras", COMMANDS)
def test_a_command_that_needs_another_extra_says_so_in_a_sentence(
    extras: str, install: Install, tmp_path: Path
) -> None:
    for name, program in MODULES.items():
        (tmp_path / f"{name}.py").write_text(program, encoding="utf-8")
    lines = [line for line, _, _ in COMMANDS[extras]]
    code, out, err = install(extras).run("python", "-c", INVOKE, *lines, cwd=tmp_path)
    assert (code, err) == (0, "")
    assert [(line, code, unnamed(said)) for line, (code, said) in zip(lines, json.loads(out), strict=True)] == [
        (line, 2, f"{sentence(what, extra)}\n") for line, what, extra in COMMANDS[extras]
    ]


def test_the_command_itself_needs_its_extra_and_has_the_version_of_the_wheel(install: Install, tmp_path: Path) -> None:
    refused = f"{sentence('The usechat command', 'cli', 'typer')}\n"
    assert install("").run("usechat", "--version", cwd=tmp_path) == (1, "", refused)
    assert install("cli").run("usechat", "--version", cwd=tmp_path) == (0, "usechat 0.1.0\n", "")
    code, out, err = install("cli").run("usechat", "check", str(ROOT / "docs" / "samples" / "hello.sse"), cwd=tmp_path)
    assert (code, out.partition(":")[0], err) == (0, "ok", "")


# The same in Python.
PROGRAMS: Final = {
    "": [
        ("from usechat import create_app", "create_app", "server"),
        ("from usechat.flows import FlowRuntime", "usechat.flows", "flows"),
    ],
    "server": [
        ("from usechat.flows import FlowRuntime", "usechat.flows", "flows"),
        (
            AGENT + "from usechat import ChatEndpoint; ChatEndpoint(agent).router()",
            "ChatEndpoint.router()",
            "fastapi",
        ),
        (HELLO + "create_app(agent, store='redis://a')", "A store on Redis", "redis"),
        (HELLO + "create_app(agent, history='postgresql://a/b')", "PostgreSQL", "postgres"),
    ],
}
TRY: Final = """
import sys
for program in sys.argv[1:]:
    try:
        exec(program, {})
    except ImportError as error:
        print(error)
"""


@pytest.mark.parametrize("extras", PROGRAMS)
def test_what_needs_another_extra_says_so_in_python_too(extras: str, install: Install, tmp_path: Path) -> None:
    programs = [program for program, _, _ in PROGRAMS[extras]]
    code, out, _ = install(extras).run("python", "-c", TRY, *programs, cwd=tmp_path)
    said = [sentence(what, extra) for _, what, extra in PROGRAMS[extras]]
    assert (code, unnamed(out).splitlines()) == (0, said)
