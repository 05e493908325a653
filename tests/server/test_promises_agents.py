"""Agents that misbehave: their own turn ends, and everybody else is served."""

import asyncio
import re
import signal
import threading
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx
import pytest

from support.hang import HANG_SECONDS
from support.http_pages import JSON, Page, client, events, to_end, user
from support.loopback import STEP, USECHAT, asking, read_until, running, serving, text_part
from usechat.errors import RequestError
from usechat.server.app import create_app
from usechat.turns.chat import Chat
from usechat.turns.pending import PendingTurn
from usechat.turns.settings import ChatSettings


class OfItsOwnError(BaseException):
    pass


FAILURES: dict[str, type[BaseException]] = {
    error.__name__: error
    for error in (
        Exception,
        OfItsOwnError,
        GeneratorExit,
        KeyboardInterrupt,
        SystemExit,
        asyncio.CancelledError,
        StopIteration,
        StopAsyncIteration,
    )
}


def fail(chat: Chat) -> str:
    if chat.text in FAILURES:
        raise FAILURES[chat.text]
    return "Well."


async def failing(chat: Chat) -> AsyncGenerator[str, None]:
    yield "I begin. "
    yield fail(chat)


def masked(chunk: JSON) -> JSON:
    return {**chunk, "errorText": re.sub("[0-9a-f]{8}", "…", chunk["errorText"])} if "errorText" in chunk else chunk


def test_whatever_an_agent_raises_ends_its_turn_with_an_error_and_nothing_else() -> None:
    with serving(create_app(failing)) as url, client(url) as http:
        ends: dict[str, list[JSON]] = {}
        for name in FAILURES:
            with Page(http, name).posting(user("u", name)) as lines:
                ends[name] = [masked(chunk) for chunk in to_end(lines)[-2:]]
            with Page(http, name).posting(user("u2", "Hello")) as lines:
                assert to_end(lines)[-1] == {"type": "finish", "finishReason": "stop"}
            kept = [message["parts"] for message in Page(http, name).messages()]
            assert kept[1::2] == [[STEP, text_part("I begin. ")], [STEP, text_part("I begin. Well.")]]
    error = [{"type": "finish-step"}, {"type": "error", "errorText": "Something went wrong. (Error …)"}]
    assert ends == dict.fromkeys(FAILURES, error)


class Clerk:
    """Loads what it needs before the turn begins, and refuses some."""

    def __init__(self) -> None:
        self.loaded = list[str]()

    async def admit(self, pending: PendingTurn) -> str:
        if pending.message.text == "No":
            raise RequestError("Not that.", status=409)
        self.loaded.append(f"{pending.chat_id} {pending.user} {pending.trigger} {pending.request.body['paper']}")
        return self.loaded[-1]

    async def run(self, chat: Chat) -> AsyncGenerator[str, None]:
        yield chat.admitted

    def translator(self, _: Chat) -> None:
        pass


def test_what_an_agent_loads_to_admit_a_turn_is_there_when_it_runs() -> None:
    clerk = Clerk()
    with serving(create_app(clerk)) as url, client(url) as http:
        with Page(http, "c").posting(user("u1", "Go"), paper="blue") as lines:
            assert to_end(lines)[-1]["type"] == "finish"
        refused = http.post("/api/chat", json={"id": "c", "messages": [user("u2", "No")]})
        assert (refused.status_code, refused.text) == (409, "Not that.")
        assert [message["parts"][-1]["text"] for message in Page(http, "c").messages()] == ["Go", *clerk.loaded]
    assert clerk.loaded == ["c None submit-message blue"]


STUBBORN = """\
import asyncio

async def agent(chat):
    yield "I begin"
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            pass
"""


def test_an_agent_that_refuses_its_cancellation_keeps_neither_its_chat_nor_the_server(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(STUBBORN)
    command = [*USECHAT, "serve", "agents:agent", "--port", "0", "--history", "sqlite://", "--grace", "0.1"]
    with running(command, tmp_path) as process:
        url = process.first_line().split()[-1]
        with asking(url) as lines:
            read_until(lines, "I begin")
            assert httpx.post(f"{url}/chat/stop", timeout=HANG_SECONDS).status_code == 204
            assert to_end(lines)[-1] == {"type": "abort"}
        with asking(url) as lines:
            read_until(lines, "I begin")
            process.send(signal.SIGTERM)
            assert to_end(lines)[-1] == {"type": "abort"}
        process.wait()


BLOCKING = """\
import asyncio
import time
from pathlib import Path

from usechat import create_app

async def agent(chat):
    yield "I begin"
    while not Path("heard").exists():
        await asyncio.sleep(0.02)
    time.sleep(3600)

app = create_app(agent, grace=3600)
"""


@pytest.mark.parametrize("target", ["agents:agent", "agents:app"])
def test_a_second_signal_ends_a_server_whose_agent_holds_the_event_loop(tmp_path: Path, target: str) -> None:
    (tmp_path / "agents.py").write_text(BLOCKING)
    own = [] if target == "agents:app" else ["--history", "sqlite://", "--grace", "3600"]
    with running([*USECHAT, "serve", target, "--port", "0", *own], tmp_path) as process:
        address = process.first_line().split()[-1]
        with asking(address if own else f"{address}/api/chat") as lines:
            read_until(lines, "I begin")
            (tmp_path / "heard").touch()
            ends = time.monotonic() + HANG_SECONDS
            # As somebody presses Ctrl-C again and again; signals that come at the same instant are one.
            while process.runs() and time.monotonic() < ends:
                process.send(signal.SIGTERM)
                time.sleep(0.2)
        # It ends hard, long before its agent lets the loop go.
        assert process.wait()[0] == 1


def test_threads_of_agents_that_never_return_are_no_more_than_those_that_are_allowed() -> None:
    release = threading.Event()
    working = threading.Semaphore(0)

    def agent(chat: Chat) -> Generator[str, None, None]:
        yield "I begin"
        working.release()
        release.wait()

    def threads() -> int:
        return [thread.name for thread in threading.enumerate()].count("usechat agent")

    with serving(create_app(agent, settings=ChatSettings(threads=2))) as url, client(url) as http:
        try:
            before = threads()
            for number in range(12):
                page = Page(http, f"chat-{number}")
                with page.posting(user("u", "Hello")) as lines:
                    if number < 2:
                        assert working.acquire(timeout=HANG_SECONDS)
                    assert page.stop() == 204
                    assert to_end(lines)[-1] == {"type": "abort"}
                assert threads() - before == min(number + 1, 2)
        finally:
            release.set()
        with Page(http).posting(user("u", "Hello")) as lines:
            assert to_end(lines)[-1] == {"type": "finish", "finishReason": "stop"}


def test_an_async_agent_that_blocks_the_loop_streams_all_the_same() -> None:
    heard = {15: threading.Event(), 30: threading.Event()}

    async def agent(chat: Chat) -> AsyncGenerator[str, None]:
        for number in range(31):
            # As a client that is not async would; it also waits until what it said long ago has been read.
            time.sleep(0.02)  # noqa: ASYNC251
            assert number not in heard or heard[number].wait(HANG_SECONDS)
            yield f"{number} "

    with serving(create_app(agent)) as url, client(url) as http, Page(http).posting(user("u", "Hello")) as lines:
        read_until(lines, '"0 "')
        heard[15].set()
        read_until(lines, '"16 "')
        heard[30].set()
        assert to_end(lines)[-1] == {"type": "finish", "finishReason": "stop"}


def test_an_agent_may_yield_chunks_as_dicts() -> None:
    async def agent(chat: Chat) -> AsyncGenerator[JSON, None]:
        yield {"type": "data-weather", "id": "w", "data": {"degrees": 21}}
        yield {"type": "text-start", "id": "t"}
        yield {"type": "text-delta", "id": "t", "delta": "Warm."}
        yield {"type": "text-end", "id": "t"}

    with serving(create_app(agent)) as url, client(url) as http, Page(http).posting(user("u", "Hello")) as lines:
        chunks = list(events(lines))
    assert chunks[1:] == [
        {"type": "data-weather", "id": "w", "data": {"degrees": 21}},
        {"type": "start-step"},
        {"type": "text-start", "id": "t"},
        {"type": "text-delta", "id": "t", "delta": "Warm."},
        {"type": "text-end", "id": "t"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop"},
    ]


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (object(), "An agent cannot yield a value of type object."),
        (7, "An agent cannot yield a value of type int."),
        (None, "An agent cannot yield a value of type NoneType."),
    ],
)
def test_what_an_agent_cannot_yield_is_named(event: object, sentence: str) -> None:
    async def agent(chat: Chat) -> AsyncGenerator[object, None]:
        yield event

    with serving(create_app(agent)) as url, client(url) as http, Page(http).posting(user("u", "Hello")) as lines:
        assert to_end(lines)[-1] == {"type": "error", "errorText": sentence}
