import asyncio
import hashlib
import re
import shlex
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from support.postgres import Postgres
from usechat.cli import main
from usechat.database import Database
from usechat.gateway.directory import SessionDirectory

GUIDE = Path(__file__).parents[2] / "docs/guides/sessions.md"

Run = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def usechat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The command as it is typed, in a folder of its own: its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["usechat", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return run


@pytest.fixture(params=["file", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return "sqlite:///sessions.db" if request.param == "file" else request.getfixturevalue("postgres").create_tables()


def rows(url: str, table: str) -> list[tuple[Any, ...]]:
    async def read() -> list[tuple[Any, ...]]:
        database = Database(url)
        query = text(f"SELECT * FROM {table}")  # noqa: S608
        found = await database.read(lambda connection: [tuple(row) for row in connection.execute(query)])
        await database.aclose()
        return found

    return asyncio.run(read())


def token_user(url: str, token: str) -> str | None:
    async def look() -> str | None:
        database = Database(url)
        user = await SessionDirectory(database).token_user(token)
        await database.aclose()
        return user

    return asyncio.run(look())


DONE = (0, "", "")


def test_each_command_adds_its_row(usechat: Run, url: str) -> None:
    def sessions(*arguments: str) -> tuple[Any, str, str]:
        return usechat("sessions", *arguments, "--directory", url)

    assert sessions("init") == DONE
    assert sessions("init") == DONE
    assert sessions("add-user", "ada") == DONE
    assert sessions("add-user", "bob") == DONE
    assert sessions("add-session", "s1", "--owner", "ada") == DONE
    options = ("--kind", "orchestrator", "--visibility", "org_visible", "--adapter", "off")
    assert sessions("add-session", "orchestrator:ada:1", "--owner", "ada", *options) == DONE
    assert sessions("grant", "s1", "bob", "collaborator") == DONE
    assert sessions("grant", "s1", "bob", "viewer") == DONE
    assert rows(url, "usechat_users") == [("ada",), ("bob",)]
    assert rows(url, "usechat_sessions") == [
        (1, "s1", "ada", "session", "private", True),
        (2, "orchestrator:ada:1", "ada", "orchestrator", "org_visible", False),
    ]
    assert rows(url, "usechat_participants") == [(1, "bob", "viewer")]
    assert sessions("change", "s1", "--adapter", "off") == DONE
    assert sessions("change", "orchestrator:ada:1", "--visibility", "private", "--adapter", "on") == DONE
    assert sorted(rows(url, "usechat_sessions")) == [
        (1, "s1", "ada", "session", "private", False),
        (2, "orchestrator:ada:1", "ada", "orchestrator", "private", True),
    ]

    code, out, err = sessions("token", "bob")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"[0-9a-f]{64}\n", out)
    assert token_user(url, out.strip()) == "bob"
    assert [row[0] for row in rows(url, "usechat_tokens")] == [hashlib.sha256(out.strip().encode()).hexdigest()]
    assert sessions("revoke", out.strip()) == DONE
    assert token_user(url, out.strip()) is None


@pytest.fixture
def ready(usechat: Run) -> Run:
    """A directory with ada and her sessions s1 and o1, an orchestrator."""

    def sessions(*arguments: str) -> tuple[Any, str, str]:
        return usechat("sessions", *arguments, "--directory", "sqlite:///sessions.db")

    for command in (
        ["init"],
        ["add-user", "ada"],
        ["add-session", "s1", "--owner", "ada"],
        ["add-session", "o1", "--owner", "ada", "--kind", "orchestrator"],
    ):
        assert sessions(*command) == DONE
    return sessions


def contents() -> list[list[tuple[Any, ...]]]:
    tables = ("users", "sessions", "participants", "tokens")
    return [rows("sqlite:///sessions.db", f"usechat_{table}") for table in tables]


NO_ID = "The id of a {} must have 1 to 512 characters and no control characters, and not be . or .. alone."
NO_TIME = "{!r} is not a duration. Write a number and s, m, h or d, such as 90s, 15m, 12h or 7d."
NO_TIMES = ("", "7", "d", "0d", "-1d", "1.5h", "7D", "7 d", "1w", "1d2h", "٣d", "1000000000d", "7d\n")
MISTAKES = {
    ("change", "s1"): "There is nothing to change. Give --visibility or --adapter.",
    ("change", "none", "--adapter", "off"): "There is no session 'none'.",
    ("add-user", "ada"): "There is a user 'ada' already.",
    ("add-user", ""): NO_ID.format("user"),
    ("add-session", "s1", "--owner", "ada"): "There is a session 's1' already.",
    ("add-session", "s2", "--owner", "bob"): "There is no user 'bob'.",
    ("add-session", "a\nb", "--owner", "ada"): NO_ID.format("session"),
    ("grant", "s2", "ada", "viewer"): "There is no session 's2'.",
    ("grant", "s\n2", "ada", "viewer"): "There is no session 's\\n2'.",
    ("grant", "s1", "bob", "viewer"): "There is no user 'bob'.",
    ("grant", "o1", "ada", "viewer"): "A session of the kind orchestrator cannot be shared.",
    ("token", "bob"): "There is no user 'bob'.",
    ("revoke", "0123"): "There is no such token.",
    **{("token", "ada", f"--expires={wrong}"): NO_TIME.format(wrong) for wrong in NO_TIMES},
}


def test_a_mistake_gets_one_sentence_and_changes_nothing(ready: Run) -> None:
    before = contents()
    refused = {command: ready(*command) for command in MISTAKES}
    assert refused == {command: (2, "", f"{sentence}\n") for command, sentence in MISTAKES.items()}
    assert contents() == before


WRONG_WORDS = [
    "grant s1 ada admin",
    "add-session s2 --owner ada --kind chat",
    "add-session s2 --owner ada --visibility public",
    "add-session s2 --owner ada --adapter maybe",
    "add-session s2",
]


def test_a_word_that_is_none_of_the_choices_is_refused(ready: Run) -> None:
    before = contents()
    assert [ready(*command.split())[:2] for command in WRONG_WORDS] == [(2, "")] * len(WRONG_WORDS)
    assert contents() == before


def test_a_token_expires_when_it_should(ready: Run) -> None:
    before = time.time()
    for expires in (["--expires", "90s"], ["--expires", "15m"], ["--expires", "12h"], ["--expires", "30d"], []):
        assert ready("token", "ada", *expires)[0] == 0
    kept = sorted(when for _, _, when, _ in rows("sqlite:///sessions.db", "usechat_tokens"))
    took = time.time() - before
    for when, seconds in zip(kept, (90, 900, 43_200, 604_800, 2_592_000), strict=True):
        assert seconds <= when - before <= seconds + took


NO_FILE = "There is no file {}. usechat sessions init creates it."
UNUSABLE = "The directory in {} cannot be used: {}."
IN_MEMORY = "A directory in memory is gone when the command ends. Name a file, such as sqlite:///sessions.db."
URLS = "The database URL must be one of SQLite or PostgreSQL, such as sqlite:///name.db or postgresql://host/name."
SLASHES = "The file of SQLite comes after three slashes, as in sqlite:///name.db."
NOT_THERE = {
    ("add-user", "ada", "sqlite:///sesions.db"): NO_FILE.format("sesions.db"),
    ("token", "ada", "sqlite+aiosqlite:///none/sessions.db"): NO_FILE.format("none/sessions.db"),
    ("init", "sqlite:///none/sessions.db"): UNUSABLE.format("none/sessions.db", "unable to open database file"),
    ("init", "sqlite:///text.db"): UNUSABLE.format("text.db", "file is not a database"),
    ("init", "sqlite://"): IN_MEMORY,
    ("init", "sqlite:///:memory:"): IN_MEMORY,
    ("init", "sqlite://sessions.db"): SLASHES,
    ("init", "sqlite+aiosqlite://:secret@/sessions.db"): SLASHES,
    ("init", "mysql://ada:secret@host/sessions"): URLS,
    ("init", "sessions.db"): URLS,
}


def test_a_database_that_is_not_there_gets_one_sentence(usechat: Run) -> None:
    Path("text.db").write_text("This is no database." * 99, encoding="utf-8")
    refused = {(*command, url): usechat("sessions", *command, "--directory", url) for *command, url in NOT_THERE}
    assert refused == {command: (2, "", f"{sentence}\n") for command, sentence in NOT_THERE.items()}
    assert [file.name for file in Path.cwd().iterdir()] == ["text.db"]


def test_a_server_that_is_not_there_gets_one_sentence_without_the_password(usechat: Run, postgres: Postgres) -> None:
    url = postgres.create_tables().replace("/postgres?", "/nowhere?")
    assert usechat("sessions", "init", "--directory", url) == (
        2,
        "",
        'The directory in nowhere on localhost cannot be used: database "nowhere" does not exist.\n',
    )
    # Nobody listens at that port.
    code, out, err = usechat("sessions", "init", "--directory", "postgresql://ada:secret@127.0.0.1:1/sessions")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("The directory in sessions on 127.0.0.1 cannot be used: ")
    assert "secret" not in err


def test_an_older_directory_is_migrated(ready: Run) -> None:
    with closing(sqlite3.connect("sessions.db")) as database:
        database.execute("DROP TABLE usechat_tokens")
    assert ready("init") == DONE
    assert rows("sqlite:///sessions.db", "usechat_tokens") == []
    assert rows("sqlite:///sessions.db", "usechat_users") == [("ada",)]


def test_the_first_commands_of_the_guide_work_word_by_word(usechat: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    block = GUIDE.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    install, export, *commands = block.splitlines()
    assert install == "pip install 'usechat[cli,server]'"
    name, _, value = export.removeprefix("export ").partition("=")
    monkeypatch.setenv(name, value)
    done = [usechat(*shlex.split(command)[1:]) for command in commands]
    assert [(code, err) for code, _, err in done] == [(0, "")] * 6
    assert [out for _, out, _ in done[:-1]] == [""] * 5
    assert token_user(value, done[-1][1].strip()) == "bob"


def test_without_the_servers_packages_it_says_what_to_install(usechat: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    assert usechat("sessions", "init", "--directory", "sqlite:///sessions.db") == (
        2,
        "",
        "usechat sessions needs sqlalchemy. Install it with: pip install 'usechat[server]'\n",
    )
