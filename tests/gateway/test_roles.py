"""Every role × kind × visibility × endpoint, with the answer that the guide's table gives."""

import asyncio
import re
from collections.abc import AsyncGenerator
from itertools import product
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from sqlalchemy import text

from usechat.database import Database
from usechat.errors import RequestError
from usechat.gateway.access import Endpoint, Kind, Role, Session, Visibility, may_access
from usechat.gateway.directory import SessionDirectory

GUIDE: Final = (Path(__file__).parents[2] / "docs/guides/sessions.md").read_text(encoding="utf-8")
ROLES: Final[tuple[Role, ...]] = get_args(Role)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
VISIBILITIES: Final[tuple[Visibility, ...]] = get_args(Visibility)
ENDPOINTS: Final[tuple[Endpoint, ...]] = get_args(Endpoint)

LADDER: Final = ("nothing", "viewer", "collaborator", "owner")
# The users of the tests, by the words of the guide.
PEOPLE: Final = {
    "the session's owner": "olga",
    "a user who was granted owner": "owner",
    "a user who was granted collaborator": "collaborator",
    "a user who was granted viewer": "viewer",
    "any other user of the directory": "member",
    "a person who is not in the directory": "stranger",
}


def table(first: str) -> list[list[str]]:
    """The rows below the heading row of the guide that begins with this word."""
    found = re.search(rf"^\| {first} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", GUIDE, re.MULTILINE)
    assert found
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].splitlines()]


HIGHEST: Final = {PEOPLE[who]: dict(zip((*VISIBILITIES, "others"), cells, strict=True)) for who, *cells in table("who")}
NEEDED: Final = {name: role for names, role in table("endpoint") for name in re.findall(r"`(\w+)`", names)}


def expected(user: str, kind: Kind, visibility: Visibility, needed: str) -> bool:
    highest = HIGHEST[user]["others" if kind in ("orchestrator", "workflow") else visibility]
    return LADDER.index(highest) >= LADDER.index(needed)


def test_the_guide_speaks_of_everybody_and_of_every_endpoint() -> None:
    assert list(HIGHEST) == list(PEOPLE.values())
    assert sorted(NEEDED) == sorted(ENDPOINTS)
    assert {cell for row in HIGHEST.values() for cell in row.values()} == set(LADDER)


def test_the_rules_are_those_of_the_guide() -> None:
    users = [user for user in HIGHEST if user != "stranger"]
    cases = list(product(users, KINDS, VISIBILITIES, ROLES))
    found = {
        (user, kind, visibility, needed): may_access(
            Session("olga", kind, visibility), user, next((role for role in ROLES if role == user), None), needed
        )
        for user, kind, visibility, needed in cases
    }
    assert found == {case: expected(*case) for case in cases}
    assert {may_access(None, user, role, needed) for user, role, needed in product(users, ROLES, ROLES)} == {False}


def test_what_nobody_knows_opens_nothing() -> None:
    unknown: Any = "unknown"
    assert not may_access(Session("olga", unknown, "org_joinable"), "ada", "owner", "viewer")
    assert not may_access(Session("olga", "session", unknown), "ada", None, "viewer")
    assert not may_access(Session("olga", "session", "private"), "ada", unknown, "viewer")


@pytest.fixture(params=["memory", "file", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Database]:
    urls = {"memory": "sqlite://", "file": f"sqlite:///{tmp_path}/sessions.db"}
    database = Database(urls.get(request.param) or request.getfixturevalue("postgres").create_tables())
    yield database
    await database.aclose()


# Also those that no command grants.
GRANT_EVERYWHERE: Final = """
    INSERT INTO usechat_participants (session, user_id, role)
    SELECT number, user_id, user_id FROM usechat_sessions CROSS JOIN usechat_users
    WHERE user_id IN ('viewer', 'collaborator', 'owner')
"""


@pytest.mark.anyio
async def test_the_directory_answers_as_the_guide_says(database: Database):
    directory = SessionDirectory(database)
    for user in HIGHEST:
        if user != "stranger":
            await directory.add_user(user)
    sessions = list(product(KINDS, VISIBILITIES, (True, False)))
    for kind, visibility, adapter in sessions:
        name = f"{kind}:{visibility}:{adapter}"
        await directory.add_session(name, "olga", kind=kind, visibility=visibility, adapter=adapter)
    await database.run(lambda connection: connection.execute(text(GRANT_EVERYWHERE)))

    async def answer(session: str, user: str, endpoint: Endpoint) -> str | None:
        try:
            return await directory.check_access(session, user, endpoint)
        except RequestError as error:
            return f"{error.status} {error}"

    not_found = "404 There is no session with this id."
    for kind, visibility, adapter in sessions:
        name = f"{kind}:{visibility}:{adapter}"
        cases = list(product(HIGHEST, ENDPOINTS))
        answers = await asyncio.gather(*(answer(name, user, endpoint) for user, endpoint in cases))
        assert dict(zip(cases, answers, strict=True)) == {
            (user, endpoint): None if adapter and expected(user, kind, visibility, NEEDED[endpoint]) else not_found
            for user, endpoint in cases
        }, name
    assert [await answer("missing", user, "channels") for user in HIGHEST] == [not_found] * len(HIGHEST)
