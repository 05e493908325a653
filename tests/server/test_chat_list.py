"""The list of a user's chats, and deleting one of them."""

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection

from support.hang import HANG_SECONDS
from support.loopback import message, read_until, serving
from usechat.server.app import create_app
from usechat.turns.chat import Chat

ANN, BOB = {"x-user": "ann"}, {"x-user": "bob"}


def who(connection: HTTPConnection) -> str | None:
    return connection.headers.get("x-user")


class House:
    """A server with users, whose agent says a word and waits when it is asked to hold."""

    def __init__(self, **options: Any) -> None:
        self.ended = threading.Event()
        self.app = create_app(self.agent, **options)
        self.http = httpx.Client(timeout=HANG_SECONDS, trust_env=False)

    def agent(self, chat: Chat) -> Iterator[str]:
        yield "A word."
        while chat.text == "hold" and chat.stopped is None:
            self.ended.wait(0.01)
            yield "."

    def ask(self, chat: str, text: str, user: dict[str, str]) -> str:
        """Read a whole turn, and give its id."""
        body = message(text, chat)
        body["messages"][0]["id"] = f"{chat} {text}"
        answer = self.http.post("/api/chat", json=body, headers=user)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-usechat-turn"]

    def again(self, chat: str, user: dict[str, str], turn: str) -> int:
        """Whether the log of the turn can still be read."""
        return self.http.get(f"/api/chat/{chat}/stream", params={"after": f"{turn}.0"}, headers=user).status_code

    def page(self, user: dict[str, str], **query: str) -> tuple[list[tuple[str, str]], str | None]:
        answer = self.http.get("/api/chats", params=query, headers=user)
        assert answer.status_code == 200, answer.text
        assert (answer.headers["content-type"], answer.headers["cache-control"]) == ("application/json", "no-store")
        page = answer.json()
        return [(chat["id"], chat["title"]) for chat in page["chats"]], page.get("next")

    def delete(self, chat: str, user: dict[str, str]) -> tuple[int, str]:
        answer = self.http.delete(f"/api/chat/{chat}", headers=user)
        return answer.status_code, answer.text

    def messages(self, chat: str, user: dict[str, str]) -> list[Any]:
        return self.http.get(f"/api/chat/{chat}/messages", headers=user).json()


@contextmanager
def serving_house(**options: Any) -> Generator[House, None, None]:
    house = House(**options)
    with serving(house.app) as url, house.http:
        house.http.base_url = url
        yield house


@pytest.fixture(params=["memory", "sqlite"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[House, None, None]:
    options = {} if request.param == "memory" else {"history": f"sqlite:///{tmp_path}/chats.db"}
    with serving_house(authenticate=who, **options) as house:
        yield house


def test_a_user_has_the_list_of_their_own_chats_in_pages(house: House) -> None:
    assert house.page(ANN) == ([], None)
    for chat in ("1", "2", "3"):
        house.ask(chat, f"About {chat}", ANN)
    house.ask("4", "About Bob", BOB)
    house.ask("1", "And one more", ANN)
    whole = [("1", "About 1"), ("3", "About 3"), ("2", "About 2")]
    assert house.page(ANN) == (whole, None)
    first, after = house.page(ANN, limit="2")
    assert (first, after is not None) == (whole[:2], True)
    assert house.page(ANN, limit="2", after=str(after)) == (whole[2:], None)
    assert house.page(BOB, after=str(after)) == ([], None)
    for query, sentence in (
        ({"after": "x"}, "This is not a place in a list of chats."),
        ({"limit": "0"}, "limit must be a number from 1 to 10,000."),
        ({"limit": "10001"}, "limit must be a number from 1 to 10,000."),
        ({"limit": "00000110001"}, "limit must be a number from 1 to 10,000."),
        ({"limit": "0" * 5_000 + "1"}, "limit must be a number from 1 to 10,000."),
    ):
        answer = house.http.get("/api/chats", params=query, headers=ANN)
        assert (answer.status_code, answer.text) == (400, sentence)
    assert house.http.get("/api/chats").status_code == 401


def test_a_chat_that_is_deleted_is_gone_for_its_user_only(house: House) -> None:
    turn = house.ask("1", "Hello", ANN)
    assert house.again("1", ANN, turn) == 200
    other = house.ask("2", "Hello", BOB)
    # Nobody learns whether it was there.
    assert [house.delete(chat, ANN) for chat in ("1", "2", "3")] == [(204, "")] * 3
    assert (house.page(ANN), house.messages("1", ANN)) == (([], None), [])
    assert house.again("1", ANN, turn) == 204
    assert (house.page(BOB), len(house.messages("2", BOB))) == (([("2", "Hello")], None), 2)
    assert house.again("2", BOB, other) == 200
    assert house.delete("2", {}) == (401, "You are not signed in.")
    house.ask("1", "Mine now", BOB)
    assert house.page(BOB)[0] == [("1", "Mine now"), ("2", "Hello")]


def test_what_runs_in_a_chat_that_is_deleted_is_stopped_and_not_kept(house: House) -> None:
    with house.http.stream("POST", "/api/chat", json=message("hold", "1"), headers=ANN) as answer:
        lines = answer.iter_lines()
        read_until(lines, "A word.")
        assert house.delete("1", ANN) == (204, "")
        assert any('"abort"' in line for line in lines)
    assert (house.page(ANN), house.messages("1", ANN)) == (([], None), [])


def test_where_nobody_signs_in_the_list_of_all_chats_is_given_only_if_the_app_says_so() -> None:
    with serving_house() as house:
        house.ask("1", "A secret", {})
        answer = house.http.get("/api/chats")
        assert (answer.status_code, answer.text) == (403, "Only a user who is signed in has a list of chats.")
    with serving_house(lists_all=True) as house:
        house.ask("1", "No secret", {})
        assert house.page({}) == ([("1", "No secret")], None)


def test_a_server_that_keeps_no_messages_has_no_list_and_deletes_nothing() -> None:
    with serving_house(history="client", approval_secret="0" * 32, lists_all=True) as house:
        answer = house.http.get("/api/chats")
        assert (answer.status_code, answer.text) == (404, "This server keeps no messages.")
        assert house.delete("1", {}) == (404, "This server keeps no messages.")
