"""What a page of another site can do with the cookies of a visitor who is signed in here."""

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from support.hang import HANG_SECONDS
from support.loopback import FINISHED, last_two, message, read_until, serving
from usechat.server.app import create_app
from usechat.turns import TurnLimits
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings

COOKIE = {"cookie": "user=ada"}
FOREIGN = ["https://evil.example", "null", "http://127.0.0.1", "https://127.0.0.1.evil.example"]
# What a form, a beacon or a `fetch` without a preflight can say that its body is.
WITHOUT_ASKING = [
    "text/plain",
    "text/plain;charset=UTF-8",
    "text/plain; application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=application/json",
    "",
]
FORBIDDEN = "Pages of another site may not do this. A proxy must pass on the Host of its own pages."
CORPUS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "</title><svg onload=1>",
]


class House:
    def __init__(self, **options: Any) -> None:
        self.gate = threading.Event()
        self.asked: list[str | None] = []
        self.app = create_app(
            self.agent,
            authenticate=lambda connection: connection.cookies.get("user"),
            settings=ChatSettings(turn=TurnLimits(linger=None)),
            **options,
        )
        self.http = httpx.Client(timeout=HANG_SECONDS, trust_env=False)

    def agent(self, chat: Chat) -> Iterator[str]:
        self.asked.append(chat.user)
        yield f"{chat.text} "
        if chat.text == "hold":
            self.gate.wait(HANG_SECONDS)

    def stop(self, origin: str) -> tuple[int, str]:
        answer = self.http.post("/api/chat/chat/stop", headers={**COOKIE, "origin": origin})
        return answer.status_code, answer.text

    def delete(self, origin: str) -> tuple[int, str]:
        answer = self.http.delete("/api/chat/chat", headers={**COOKIE, "origin": origin})
        return answer.status_code, answer.text

    def handshake(self, origin: str) -> int:
        url = f"{self.http.base_url}/api/chat/ws".replace("http", "ws", 1)
        with pytest.raises(InvalidStatus) as caught:
            connect(url, origin=Origin(origin), additional_headers=COOKIE, proxy=None)
        return caught.value.response.status_code

    def preflight(self, origin: str) -> httpx.Response:
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
        return self.http.options("/api/chat", headers={"origin": origin, **asked})


@contextmanager
def serving_house(**options: Any) -> Generator[House, None, None]:
    house = House(**options)
    with serving(house.app) as url, house.http:
        house.http.base_url = url
        yield house


@pytest.mark.parametrize("origin", FOREIGN)
def test_a_page_of_another_site_begins_no_turn_without_asking(origin: str) -> None:
    with serving_house() as house:
        for kind in WITHOUT_ASKING:
            headers = {**COOKIE, "origin": origin, "content-type": kind}
            answer = house.http.post("/api/chat", json=message("x"), headers=headers)
            assert (answer.status_code, answer.text) == (415, "The content type must be application/json.")
        assert house.asked == []


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize(
    "options", [{}, {"cors": ["https://page.example"]}, {"cors": ["https://page.example"], "cors_credentials": True}]
)
def test_a_page_of_another_site_that_asks_is_not_allowed(origin: str, options: dict[str, Any]) -> None:
    with serving_house(**options) as house:
        answer = house.preflight(origin)
        assert answer.status_code in (400, 405)
        assert "access-control-allow-origin" not in answer.headers
        read = house.http.get("/api/chat/chat/messages", headers={**COOKIE, "origin": origin})
        assert "access-control-allow-origin" not in read.headers


def test_a_page_of_any_site_comes_without_cookies_where_all_are_listed() -> None:
    with serving_house(cors=["*"]) as house:
        for answer in (
            house.preflight("https://evil.example"),
            house.http.get("/api/chat/chat/messages", headers={**COOKIE, "origin": "https://evil.example"}),
        ):
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in answer.headers


def test_pages_of_all_sites_may_stop_and_delete_where_all_are_listed_but_open_no_socket() -> None:
    with serving_house(cors="*") as house:
        assert house.stop("https://evil.example") == (204, "")
        assert house.delete("https://evil.example") == (204, "")
        assert house.handshake("https://evil.example") == 403


@pytest.mark.parametrize("options", [{}, {"cors": ["https://page.example"]}, {"cors": "https://page.example"}])
def test_a_page_of_another_site_stops_nothing_and_opens_no_socket(options: dict[str, Any]) -> None:
    with (
        serving_house(**options) as house,
        house.http.stream("POST", "/api/chat", json=message("hold"), headers=COOKIE) as response,
    ):
        lines = response.iter_lines()
        read_until(lines, "hold ")
        for origin in FOREIGN:
            assert house.stop(origin) == (403, FORBIDDEN)
            assert house.delete(origin) == (403, FORBIDDEN)
            assert house.handshake(origin) == 403
        house.gate.set()
        assert last_two("\n".join(lines)) == FINISHED


@pytest.mark.parametrize("text", CORPUS)
def test_nothing_that_the_server_sends_is_a_page(text: str) -> None:
    with serving_house() as house:
        answers = [
            house.http.post("/api/chat", json=message(text), headers=COOKIE),
            house.http.get("/api/chat/chat/messages", headers=COOKIE),
            house.http.get(f"/api/chat/{text}/messages", headers=COOKIE),
            house.http.post("/api/chat", json={"id": "x", text: [], "messages": [{text: text}]}, headers=COOKIE),
            house.http.get(f"/{text}"),
            house.http.get("/", headers={"host": f"{text.replace('/', '')}"}),
        ]
        kinds = [answer.headers["content-type"].partition(";")[0] for answer in answers]
        assert kinds == ["text/event-stream", *["application/json"] * 2, *["text/plain"] * 3]
        assert all("set-cookie" not in answer.headers for answer in answers)
