import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from usechat.database import Database
from usechat.errors import RequestError
from usechat.gateway.directory import DirectoryError, SessionDirectory

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[2] / "docs/guides/sessions.md"


@pytest.fixture(params=["memory", "file", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return request.getfixturevalue("postgres").create_tables()
    return {"memory": "sqlite://", "file": f"sqlite:///{tmp_path}/sessions.db"}[request.param]


@pytest.fixture
async def database(url: str) -> AsyncGenerator[Database]:
    database = Database(url)
    yield database
    await database.aclose()


@pytest.fixture
async def directory(database: Database) -> SessionDirectory:
    """It has the users ada and bob, and ada's session s1."""
    directory = SessionDirectory(database)
    for user in ("ada", "bob"):
        await directory.add_user(user)
    await directory.add_session("s1", "ada")
    return directory


async def rows(database: Database, table: str) -> list[tuple[Any, ...]]:
    query = text(f"SELECT * FROM {table}")  # noqa: S608
    return await database.read(lambda connection: [tuple(row) for row in connection.execute(query)])


async def is_found(directory: SessionDirectory, session: str, user: str) -> bool:
    try:
        await directory.check_access(session, user, "stream")
    except RequestError as error:
        if error.status != 404:
            raise
        return False
    return True


# Ids that upstream may have, or that only look like something else.
IDS = [
    "orchestrator:ada:6f1c",
    "a/b",
    "...",
    "../../etc/passwd",
    "%2e%2e%2f",
    "' OR '1'='1",
    "{}",
    "S1",
    "s1 ",
    "ѕ1 with a cyrillic letter",
    "e\u0301",
    "é",
    " ",
    "\U0001f600" * 512,
]
# Ids that nobody can have.
NO_IDS = [
    "",
    ".",
    "..",
    "a\nb",
    "s1\n",
    "a\r\nx: y",
    "s1\x00",
    "\x7f",
    "\x9f",
    "\ud800",
    "x" * 513,
    "x" * 10_000,
    "/.." * 5_000,
]


async def test_an_id_is_nothing_but_itself(directory: SessionDirectory):
    for name in IDS:
        assert not await is_found(directory, name, "ada")
        await directory.add_user(name)
        await directory.add_session(name, name)
        # Both ids at once are more than an index of PostgreSQL has room for.
        await directory.grant(name, "bob", "viewer")
        await directory.grant("s1", name, "viewer")
        assert await is_found(directory, name, name)
        assert await is_found(directory, name, "bob")
        assert not await is_found(directory, name, "ada")
    assert not await is_found(directory, "%", "ada")


async def test_what_cannot_be_an_id_is_not_there_and_not_added(directory: SessionDirectory):
    for name in NO_IDS:
        await refuse_id(directory, name)


async def refuse_id(directory: SessionDirectory, name: str) -> None:
    assert not await is_found(directory, name, "ada")
    assert not await is_found(directory, "s1", name)
    assert not await directory.has_user(name)
    assert await directory.token_user(name) is None
    sentence = (
        r"^The id of a {} must have 1 to 512 characters and no control characters, and not be \. or \.\. alone\.$"
    )
    with pytest.raises(DirectoryError, match=sentence.format("user")):
        await directory.add_user(name)
    with pytest.raises(DirectoryError, match=sentence.format("session")):
        await directory.add_session(name, "ada")
    for call in (
        directory.add_session("s2", name),
        directory.grant("s1", name, "viewer"),
        directory.add_token(name, 1),
    ):
        with pytest.raises(DirectoryError, match=r"^There is no user "):
            await call
    with pytest.raises(DirectoryError, match=r"^There is no session "):
        await directory.grant(name, "bob", "viewer")


PERMITTED = [("s1", "ada"), ("orchestrator:ada", "ada")]


async def test_a_missing_session_costs_the_same_statements_as_a_forbidden_one(directory: SessionDirectory):
    await directory.add_session("off", "ada", adapter=False)
    await directory.add_session("orchestrator:ada", "ada", kind="orchestrator")
    # A file has a connection for readers, which the first of them opens.
    assert not await is_found(directory, "missing", "bob")
    seen: list[tuple[str, str, list[str]]] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen[-1][2].append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    for session in ("s1", "off", "orchestrator:ada", "missing", *NO_IDS):
        for user in ("bob", "ada", "stranger"):
            seen.append((session, user, []))
            assert await is_found(directory, session, user) == ((session, user) in PERMITTED)
    event.remove(Engine, "before_cursor_execute", note)
    assert [(session, user, len(statements)) for session, user, statements in seen if len(statements) != 1] == []
    assert len({statements[0] for _, _, statements in seen}) == 1


async def test_what_is_there_already_is_not_added_again(directory: SessionDirectory, database: Database):
    await directory.grant("s1", "bob", "viewer")
    before = [await rows(database, table) for table in ("usechat_users", "usechat_sessions", "usechat_participants")]
    with pytest.raises(DirectoryError, match=r"^There is a user 'ada' already\.$"):
        await directory.add_user("ada")
    with pytest.raises(DirectoryError, match=r"^There is a session 's1' already\.$"):
        await directory.add_session("s1", "bob", visibility="org_joinable")
    with pytest.raises(DirectoryError, match=r"^There is no user 'carl'\.$"):
        await directory.add_session("s2", "carl")
    assert before == [
        await rows(database, table) for table in ("usechat_users", "usechat_sessions", "usechat_participants")
    ]


async def test_a_grant_takes_the_place_of_the_one_before(directory: SessionDirectory, database: Database):
    for role in ("collaborator", "owner"):
        await directory.grant("s1", "bob", role)
        await directory.check_access("s1", "bob", "chat")
    await directory.grant("s1", "bob", "viewer")
    with pytest.raises(RequestError):
        await directory.check_access("s1", "bob", "chat")
    assert await rows(database, "usechat_participants") == [(1, "bob", "viewer")]


@pytest.mark.parametrize("kind", ["orchestrator", "workflow"])
async def test_an_orchestrator_or_a_workflow_is_not_shared(directory: SessionDirectory, database: Database, kind: Any):
    await directory.add_session("mine", "ada", kind=kind, visibility="org_joinable")
    with pytest.raises(DirectoryError, match=rf"^A session of the kind {kind} cannot be shared\.$"):
        await directory.grant("mine", "bob", "viewer")
    assert await rows(database, "usechat_participants") == []
    assert not await is_found(directory, "mine", "bob")


async def test_only_the_hash_of_a_token_is_kept(directory: SessionDirectory, database: Database):
    token = await SessionDirectory(database, clock=lambda: 1000.0).add_token("bob", 60)
    assert len(bytes.fromhex(token)) == 32
    assert await rows(database, "usechat_tokens") == [(hashlib.sha256(token.encode()).hexdigest(), "bob", 1060.0, None)]
    assert token not in repr([await rows(database, table) for table in ("usechat_tokens", "usechat_users")])


async def test_a_token_is_valid_until_it_expires(directory: SessionDirectory, database: Database):
    def at(now: float) -> SessionDirectory:
        return SessionDirectory(database, clock=lambda: now)

    token, other = await at(1000).add_token("bob", 60), await at(1000).add_token("ada", 3600)
    found = [(await at(now).token_user(token), await at(now).token_user(other)) for now in (1000, 1059.5, 1060, 1e9)]
    assert found == [("bob", "ada"), ("bob", "ada"), (None, "ada"), (None, None)]


async def test_a_token_that_was_revoked_is_nobodys_from_the_next_call_on(
    url: str, database: Database, directory: SessionDirectory
):
    token, other = await directory.add_token("bob", 60), await directory.add_token("bob", 60)
    assert await directory.token_user(token) == "bob"
    # As the command does it, beside a server; a database in memory has nobody beside it.
    own = database if url == "sqlite://" else Database(url)
    beside = SessionDirectory(own)
    await beside.revoke(token)
    assert [await directory.token_user(token), await directory.token_user(other)] == [None, "bob"]
    await beside.revoke(token)
    for wrong in ("", "0" * 64, token.upper(), hashlib.sha256(other.encode()).hexdigest(), "\ud800"):
        with pytest.raises(DirectoryError, match=r"^There is no such token\.$"):
            await directory.revoke(wrong)
    assert await directory.token_user(other) == "bob"
    await own.aclose()


async def test_when_a_token_was_revoked_is_kept(directory: SessionDirectory, database: Database):
    token = await SessionDirectory(database, clock=lambda: 1000.0).add_token("bob", 60)
    for now in (1010.0, 1020.0):
        await SessionDirectory(database, clock=lambda now=now: now).revoke(token)
    assert [row[2:] for row in await rows(database, "usechat_tokens")] == [(1060.0, 1010.0)]


async def test_the_switch_of_the_guide_counts_from_the_next_call_on(directory: SessionDirectory, database: Database):
    statement = GUIDE.read_text(encoding="utf-8").partition("```sql\n")[2].partition("```")[0]
    assert await is_found(directory, "s1", "ada")
    await database.run(lambda connection: connection.execute(text(statement)))
    assert not await is_found(directory, "s1", "ada")


async def test_of_two_who_add_the_same_at_once_one_does(directory: SessionDirectory):
    calls: list[Callable[[], Any]] = [
        lambda: directory.add_user("carl"),
        lambda: directory.add_session("s2", "ada"),
    ]
    for call in calls:
        done = await asyncio.gather(*(call() for _ in range(4)), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in done) == ["DirectoryError"] * 3 + ["NoneType"]
