"""Who may do what with which session, over HTTP: the six rules once more, and that a refusal tells nothing."""

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from itertools import product
from typing import Any, Final, get_args
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest
from sqlalchemy import Engine, event

from gateways import Gateway, serving_gateway
from loopback import message, parts, text_part
from usechat.server.auth import bearer_token
from usechat.server.sessions.access import Endpoint, Kind, Visibility

pytestmark = pytest.mark.anyio

Case = tuple[str, str, Endpoint]

PEOPLE: Final = ("olga", "granted owner", "granted collaborator", "granted viewer", "member", "stranger")
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
VISIBILITIES: Final[tuple[Visibility, ...]] = get_args(Visibility)

READING: Final = frozenset[Endpoint](("stream", "channels"))
EVERYTHING: Final = READING | frozenset[Endpoint](("chat", "stop", "answer"))
NOTHING: Final = frozenset[Endpoint]()

REQUESTS: Final[dict[Endpoint, dict[str, Any]]] = {
    "chat": {"method": "POST", "rest": "chat", "json": message("Hello")},
    "stream": {"method": "GET", "rest": "chat/other/stream"},
    "stop": {"method": "POST", "rest": "chat/other/stop"},
    "answer": {"method": "POST", "rest": "answer", "json": {"questionId": "q", "answer": True}},
    "channels": {"method": "GET", "rest": "channels"},
}
# The endpoints that open a socket.
CONNECTING: Final = ("chat", "answer", "channels")

Seen = tuple[int, str, dict[str, str]]


def permitted(person: str, kind: Kind, visibility: Visibility) -> frozenset[Endpoint]:
    """What a person may do: the table of Agent Ops, its first row that fits."""
    match person, kind, visibility:
        case "stranger", _, _:
            return NOTHING
        case "olga", _, _:
            return EVERYTHING
        case _, "orchestrator" | "workflow", _:
            return NOTHING
        case "granted owner" | "granted collaborator", _, _:
            return EVERYTHING
        case _, _, "org_joinable":
            return EVERYTHING
        case "granted viewer", _, _:
            return READING
        case _, _, "org_visible":
            return READING
        case _:
            return NOTHING


async def fill(gateway: Gateway) -> list[tuple[str, Kind, Visibility, bool]]:
    """The people and the sessions of `olga`, one of each sort."""
    directory = gateway.directory
    for person in PEOPLE[:-1]:
        await directory.add_user(person)
    sessions = [
        (f"{kind}/{visibility}:{'on' if adapter else 'off'}", kind, visibility, adapter)
        for kind, visibility, adapter in product(KINDS, VISIBILITIES, (True, False))
    ]
    for name, _, visibility, adapter in sessions:
        # What is shared first may become an orchestrator later.
        await directory.add_session(name, "olga", visibility=visibility, adapter=adapter)
        for person in PEOPLE[1:4]:
            role: Any = person.removeprefix("granted ")
            await directory.grant(name, person, role)
    await set_kinds(gateway)
    return sessions


async def set_kinds(gateway: Gateway) -> None:
    query = "UPDATE usechat_sessions SET kind = substr(session_id, 1, instr(session_id, '/') - 1) WHERE owner = 'olga'"
    await gateway.database.run(lambda connection: connection.exec_driver_sql(query))


async def seen_of(gateway: Gateway, session: str, person: str, endpoint: Endpoint) -> Seen:
    """What somebody sees: the status, the body and the headers."""
    request = dict(REQUESTS[endpoint])
    url = gateway.path(request.pop("rest"), session)
    response = await gateway.http.request(url=url, headers={"authorization": f"Bearer {person.split()[-1]}"}, **request)
    return status_body_headers(response)


def status_body_headers(response: httpx.Response) -> Seen:
    headers = {name: value for name, value in response.headers.items() if name != "date"}
    return response.status_code, response.text, headers


def check_served(endpoint: Endpoint, seen: Seen) -> None:
    status, body, _ = seen
    match endpoint:
        case "chat":
            assert status == 200
            assert text_part("You said: Hello") in parts(body)
        case "stream" | "stop":
            assert (status, body) == (204, "")
        case "answer":
            assert (status, "There is no such question open." in body) == (404, True)
        case "channels":
            assert (status, body) == (200, '{"channels":[{"channelType":"web","channelId":"default"}]}')


def people_by_token() -> Any:
    names = {person.split()[-1]: person for person in PEOPLE}
    return lambda connection: names.get(bearer_token(connection) or "")


async def test_everybody_may_do_what_the_rules_say_and_a_refusal_is_a_missing_session():
    async with serving_gateway(authenticate=people_by_token()) as gateway:
        sessions = await fill(gateway)
        missing = {
            (person, endpoint): await seen_of(gateway, "missing", person, endpoint)
            for person, endpoint in product(PEOPLE, REQUESTS)
        }
        assert {(status, headers["cache-control"]) for status, _, headers in missing.values()} == {(404, "no-store")}
        # Not even the person or the endpoint makes a difference.
        assert len({str(seen) for seen in missing.values()}) == 1
        assert gateway.agent.addresses == []
        opened: Counter[tuple[str, str]] = Counter()
        for name, kind, visibility, adapter in sessions:
            cases = list(product(PEOPLE, REQUESTS))
            answers = await asyncio.gather(*(seen_of(gateway, name, *case) for case in cases))
            for (person, endpoint), seen in zip(cases, answers, strict=True):
                if adapter and endpoint in permitted(person, kind, visibility):
                    check_served(endpoint, seen)
                    opened[name, person] += endpoint in CONNECTING
                else:
                    assert seen == missing[person, endpoint], (name, person, endpoint)
        assert Counter(map(session_and_user, gateway.agent.addresses)) == +opened


def session_and_user(address: str) -> tuple[str, str]:
    url = urlsplit(address)
    return unquote(url.path.split("/")[3]), parse_qs(url.query)["userId"][0]


@contextmanager
def statements() -> Generator[list[str]]:
    """All that is asked of any database meanwhile."""
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def test_a_refusal_runs_the_same_queries_as_a_missing_session():
    async with serving_gateway() as gateway:
        await gateway.headers("bob")
        add = gateway.directory.add_session
        await add("off", "bob", adapter=False)
        await add("orchestrator:ana:6f1c", "ana", kind="orchestrator", visibility="org_joinable")
        await add("visible", "ana", visibility="org_visible")
        found: dict[tuple[str, Endpoint], tuple[int, list[str]]] = {}
        for session, endpoint in product(
            ("missing", "s1", "off", "orchestrator:ana:6f1c", "visible", "no\tid", "x" * 10_000), REQUESTS
        ):
            request = dict(REQUESTS[endpoint])
            url, headers = gateway.path(request.pop("rest"), session), await gateway.headers("bob")
            with statements() as seen:
                response = await gateway.http.request(url=url, headers=headers, **request)
            found[session, endpoint] = response.status_code, seen
        served = {("visible", "stream"), ("visible", "channels")}
        assert {case for case, (status, _) in found.items() if status != 404} == served
        # Who it is, and whether they may.
        assert {len(seen) for _, seen in found.values()} == {2}
        assert len({tuple(seen) for _, seen in found.values()}) == 1
        assert len(gateway.agent.addresses) == 1
