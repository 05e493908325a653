"""Whatever an agent does, every client ends ready or with an error, with no part open, and with the message we keep."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any, Final, NamedTuple

import httpx
import pytest
import uvicorn
from hypothesis import Phase, given, seed, settings
from starlette.applications import Starlette

from node import Node
from pages import Browser, Message, Page, View, known_to
from programs import PROGRAMS, Program, play
from promises import PINNED, release_of
from same_json import strict
from support.hang import HANG_SECONDS
from support.soak import SEED, draws
from test_reader import MANY, V7
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import UIMessage
from usechat.server.endpoint import ChatEndpoint
from usechat.stores import Outcome
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings

PROFILES: Final[tuple[ClientName, ...]] = ("v5", "portable")
UNFINISHED: Final = ("streaming", "input-streaming")
STATUSES: Final[dict[Outcome, str]] = {"done": "ready", "stopped": "ready", "error": "error"}


class House:
    """A server whose agents play the program that the user's text names."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self.port = 0
        self._ends: dict[str, list[Outcome]] = {}
        self._changed = threading.Condition()
        self._http = httpx.Client(trust_env=False, timeout=HANG_SECONDS)
        settings = {name: ChatSettings(client=name, on_end=self._note_end) for name in PROFILES}
        self._endpoints = {name: ChatEndpoint(self._agent, settings=settings[name]) for name in PROFILES}
        routes = [route for name in PROFILES for route in self._endpoints[name].routes(f"/{name}")]
        self.app = Starlette(routes=routes)

    def _agent(self, chat: Chat) -> Any:
        loop, chats = asyncio.get_running_loop(), self._endpoints[chat.client].chats

        def stop() -> None:
            asyncio.run_coroutine_threadsafe(chats.stop(chat.id, None, None), loop)

        return play(self.programs[chat.text], chat, stop)

    async def _note_end(self, outcome: Outcome, message: UIMessage) -> None:
        with self._changed:
            self._ends.setdefault(message.id, []).append(outcome)
            self._changed.notify_all()

    def ends(self, message_id: str) -> list[Outcome]:
        """How the turn of a message ended; more than once would be a fault."""
        with self._changed:
            assert self._changed.wait_for(lambda: message_id in self._ends, HANG_SECONDS)
            return self._ends[message_id]

    def kept(self, profile: ClientName, chat: str) -> list[Message]:
        return self._http.get(f"http://127.0.0.1:{self.port}/{profile}/{chat}/messages").json()

    def close(self) -> None:
        self._http.close()


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    house = House()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        house.port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(house.app, log_level="critical", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield house
        server.should_exit = True
        thread.join()
    house.close()


class Reading(NamedTuple):
    """What one client made of a program."""

    client: str
    profile: ClientName
    chat: str
    view: View


def profile_for(client: str, program: Program) -> ClientName:
    return "v5" if client == "5.0.0" or (program.asks and release_of(client).major == 5) else "portable"


def read_by_all(house: House, browser: Browser, program: Program, name: str) -> list[Reading]:
    house.programs[name] = program
    pages: list[tuple[str, ClientName, str, Page]] = []
    for client in PINNED:
        profile, chat = profile_for(client, program), f"{name}-{client}"
        pages.append((client, profile, chat, browser.open(client, f"/{profile}", chat).send(name)))
    readings = [Reading(client, profile, chat, page.settle()) for client, profile, chat, page in pages]
    browser.close_pages()
    return readings


def as_built(client: str, messages: list[Message]) -> list[Message]:
    """The messages without what older clients build otherwise than the newest, which our reader follows."""
    messages = [{**message, "parts": without_last_steps(message["parts"])} for message in messages]
    if client == V7:
        return messages
    known = [known_to(client, message) for message in messages]
    return [{**message, "parts": [without_wrong_input(part) for part in message["parts"]]} for message in known]


def without_last_steps(parts: list[Message]) -> list[Message]:
    """A page sees a step as soon as anything else follows in it; an agent may begin one in which nothing does."""
    last = next((place for place in range(len(parts), 0, -1) if parts[place - 1]["type"] != "step-start"), 0)
    return parts[:last]


def without_wrong_input(part: Message) -> Message:
    """The older ones keep the input of a failed call as it came, in one field or another."""
    dropped = ("input", "rawInput") if part.get("state") == "output-error" else ("rawInput",)
    return {name: value for name, value in part.items() if name not in dropped}


def check(house: House, reading: Reading) -> None:
    client, view = reading.client, reading.view
    answer = view.messages[-1]
    assert answer["role"] == "assistant"
    assert [part for part in answer["parts"] if part.get("state") in UNFINISHED] == [], client
    [outcome] = house.ends(answer["id"])
    assert (view.status, len(view.requests)) == (STATUSES[outcome], 1), client
    kept = house.kept(reading.profile, reading.chat)
    # An answer that says nothing may be kept or not.
    assert strict(spoken(as_built(client, kept))) == strict(spoken(as_built(client, view.messages))), client


def spoken(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message["parts"]]


def test_every_client_ends_with_the_message_that_is_kept(house: House, pages_node: Node) -> None:
    browser = Browser(pages_node, house.port)
    names = (f"program-{number}" for number in count())

    @seed(SEED)
    @settings(MANY, max_examples=draws(10, 45), database=None, phases=[Phase.generate])
    @given(PROGRAMS)
    def run(program: Program) -> None:
        try:
            for reading in read_by_all(house, browser, program, next(names)):
                check(house, reading)
        except AssertionError as error:
            error.add_note(f"USECHAT_SEED={SEED}, {program}")
            raise

    try:
        run()
    finally:
        browser.close_pages()
