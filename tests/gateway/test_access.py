"""Who may do what with which session, over HTTP: the six rules once more, and that a refusal tells nothing."""

import asyncio
from collections import Counter
from itertools import product
from typing import Any, Final, NamedTuple, get_args
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest

from support.gateways import Gateway, serving_gateway, statements
from support.loopback import message, parts, text_part
from usechat.gateway.access import Endpoint, Kind, Visibility
from usechat.server.auth import bearer_token

pytestmark = pytest.mark.anyio

PEOPLE: Final = ("olga", "granted-owner", "granted-collaborator", "granted-viewer", "member", "stranger")
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
        case "granted-owner" | "granted-collaborator", _, _:
            return EVERYTHING
        case _, _, "org_joinable":
            return EVERYTHING
        case "granted-viewer", _, _:
            return READING
        case _, _, "org_visible":
            return READING
        case _:
            return NOTHING


class Sort(NamedTuple):
    kind: Kind
    visibility: Visibility
    adapter: bool

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.visibility}:{'on' if self.adapter else 'off'}"


SORTS: Final = [
    Sort(kind, visibility, adapter) for kind in KINDS for visibility in VISIBILITIES for adapter in (True, False)
]
# What is shared first can become an orchestrator only so.
SET_KINDS: Final = """
    UPDATE usechat_sessions SET kind = substr(session_id, 1, instr(session_id, '/') - 1) WHERE owner = 'olga'
"""


async def fill(gateway: Gateway) -> None:
    """The people, and a session of `olga` of each sort, with the same grants."""
    directory = gateway.directory
    for person in PEOPLE[:-1]:
        await directory.add_user(person)
    for sort in SORTS:
        await directory.add_session(sort.name, "olga", visibility=sort.visibility, adapter=sort.adapter)
        for person in PEOPLE[1:4]:
            role: Any = person.removeprefix("granted-")
            await directory.grant(sort.name, person, role)
    await gateway.database.run(lambda connection: connection.exec_driver_sql(SET_KINDS))


async def seen_of(gateway: Gateway, session: str, person: str, endpoint: Endpoint) -> Seen:
    """What somebody sees: the status, the body and the headers."""
    request = dict(REQUESTS[endpoint])
    url = gateway.path(request.pop("rest"), session)
    response = await gateway.http.request(url=url, headers={"authorization": f"Bearer {person}"}, **request)
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


async def test_everybody_may_do_what_the_rules_say_and_a_refusal_is_a_missing_session():
    async with serving_gateway(authenticate=bearer_token) as gateway:
        await fill(gateway)
        missing = {
            (person, endpoint): await seen_of(gateway, "missing", person, endpoint)
            for person, endpoint in product(PEOPLE, REQUESTS)
        }
        assert {(status, headers["cache-control"]) for status, _, headers in missing.values()} == {(404, "no-store")}
        # Not even the person or the endpoint makes a difference.
        assert len({str(seen) for seen in missing.values()}) == 1
        assert gateway.agent.addresses == []
        opened: Counter[tuple[str, str]] = Counter()
        for sort in SORTS:
            cases = list(product(PEOPLE, REQUESTS))
            answers = await asyncio.gather(*(seen_of(gateway, sort.name, *case) for case in cases))
            for (person, endpoint), seen in zip(cases, answers, strict=True):
                if sort.adapter and endpoint in permitted(person, sort.kind, sort.visibility):
                    check_served(endpoint, seen)
                    opened[sort.name, person] += endpoint in CONNECTING
                else:
                    assert seen == missing[person, endpoint], (sort, person, endpoint)
        assert Counter(map(session_and_user, gateway.agent.addresses)) == +opened


def session_and_user(address: str) -> tuple[str, str]:
    url = urlsplit(address)
    return unquote(url.path.split("/")[3]), parse_qs(url.query)["userId"][0]


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
