"""A reader that comes back continues where it was; a reader that does not read is cut off."""

import copy
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from support.hang import HANG_SECONDS
from support.http_pages import JSON, Page, client, metric, user
from support.loopback import serving
from support.sockets import opening, sequences, texts
from support.sockets import serving as serving_sockets
from usechat.events import AgentEvent, ToolCall, ToolResult
from usechat.server.app import create_app
from usechat.server.auth import BearerTokens
from usechat.server.responses import StreamLimits
from usechat.turns.chat import Chat
from usechat.turns.settings import ChatSettings

ANN, BOB = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
MEGABYTE = 1024 * 1024


class Gated:
    """An agent in a thread, which asks for an approval when it is told to, and waits at its gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def agent(self, chat: Chat) -> Generator[AgentEvent, None, None]:
        if chat.text == "delete" and not chat.approvals:
            yield ToolCall("call", "rm", {"file": "a" * self.size(chat)})
            chat.write.approval_request("call", approval_id="p")
            return
        for approval in chat.approvals:
            yield ToolResult(approval.call_id, "deleted")
        yield "One, "
        yield "two, "
        for _ in range(self.size(chat)):
            yield "x" * 1024
        if chat.text != "hello":
            self.gate.wait(HANG_SECONDS)
        yield "three."

    def size(self, chat: Chat) -> int:
        return chat.request.body.get("size", 0)


@contextmanager
def gated(settings: ChatSettings | None = None, **options: Any) -> Generator[tuple[Gated, httpx.Client], None, None]:
    house = Gated()
    app = create_app(house.agent, settings=settings or ChatSettings(), **options)
    with serving(app) as url, client(url) as http:
        try:
            yield house, http
        finally:
            house.gate.set()


def frames(body: str) -> list[str]:
    return [f"{frame}\n\n" for frame in body.removesuffix("\n\n").split("\n\n")]


def post(http: httpx.Client, chat: str, text: str, headers: dict[str, str] | None = None) -> httpx.Response:
    response = http.post("/api/chat", json={"id": chat, "messages": [user("u", text)]}, headers=headers)
    assert response.status_code == 200, response.text
    return response


def test_who_counts_reads_the_rest_of_a_turn_that_has_ended_and_nobody_else_does() -> None:
    def read(chat: str, after: str | None, headers: dict[str, str] = ANN) -> tuple[int, list[str]]:
        response = http.get(
            f"/api/chat/{chat}/stream", params={} if after is None else {"after": after}, headers=headers
        )
        return response.status_code, frames(response.text) if response.text else []

    with gated(authenticate=BearerTokens({"a": "ann", "b": "bob"})) as (_, http):
        posted = post(http, "one", "hello", ANN)
        post(http, "two", "hello", ANN)
        whole, turn = frames(posted.text), posted.headers["x-usechat-turn"]
        mark = whole[0].removeprefix("id: ").partition(".")[0]
        for index in (0, 3, len(whole) - 1):
            rest = (200, whole[index:])
            assert read("one", f"{mark}.{index}") == rest
            assert read("one", f"{turn}.{index}") == rest
            assert read("one", None, {**ANN, "last-event-id": f"{mark}.{index}"}) == rest
        refused = [("one", None, ANN), ("two", f"{mark}.0", ANN), ("one", f"{mark}.0", BOB), ("one", f"{turn}.0", BOB)]
        wrong = [("one", f"{mark}.999", ANN), ("one", "00000000.0", ANN), ("one", f"{mark}.x", ANN), ("one", mark, ANN)]
        assert [read(*question) for question in refused + wrong] == [(204, [])] * 8


def approved(message: JSON) -> JSON:
    answered = copy.deepcopy(message)
    answered["parts"][-1] |= {"state": "approval-responded", "approval": {"id": "p", "approved": True}}
    return answered


class Stream:
    """The frames of a response, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200, response.read()
        self._lines = response.iter_lines()

    def until(self, wanted: str) -> list[str]:
        read: list[str] = []
        while not read or wanted not in read[-1]:
            read.append(self.frame())
        return read

    def rest(self) -> list[str]:
        return self.until("[DONE]")

    def frame(self) -> str:
        lines = list(iter(self._lines.__next__, ""))
        return "\n".join([*lines, "", ""])


def test_a_running_turn_is_read_from_its_own_beginning_or_told_whole_and_read_on_from_the_last_id() -> None:
    with gated() as (house, http):
        page = Page(http)
        post(http, "chat", "delete")
        body = {"id": "chat", "messages": [approved(page.messages()[-1])]}
        with ExitStack() as stack:
            live = Stream(stack.enter_context(http.stream("POST", "/api/chat", json=body)))
            said = live.until("two, ")
            replay = Stream(stack.enter_context(http.stream("GET", f"{page.path}/stream")))
            told = replay.until("two, ")
            mark = said[0].removeprefix("id: ").partition(".")[0]
            # The replay has the part of the call that the turn itself has not.
            assert [text for text in ("rm", "One, ") if text in "".join(told)] == ["rm", "One, "]
            assert "tool-input-available" not in "".join(said)
            last_id = told[-1].splitlines()[0].removeprefix("id: ")
            assert last_id == f"{mark}.{len(said)}"
            with (
                http.stream("GET", f"{page.path}/stream", params={"after": f"{mark}.0"}) as from_start,
                http.stream("GET", f"{page.path}/stream", params={"after": last_id}) as after,
                http.stream("GET", f"{page.path}/stream", params={"after": f"{mark}.999"}) as beyond,
            ):
                beginning, told_again = Stream(from_start), Stream(beyond)
                assert (beginning.until("two, "), told_again.until("two, ")) == (said, told)
                house.gate.set()
                rest = live.rest()
                others = [stream.rest() for stream in (replay, beginning, Stream(after), told_again)]
        assert (others, rest[-1]) == ([rest] * 4, "data: [DONE]\n\n")


def test_events_have_names_live_and_replayed_if_the_app_wants_them() -> None:
    def names(read: list[str]) -> list[str]:
        lines = [line for frame in read for line in frame.splitlines()]
        return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]

    with gated(ChatSettings(event_names=True)) as (house, http):
        body = {"id": "chat", "messages": [user("u", "wait")]}
        with ExitStack() as stack:
            live = Stream(stack.enter_context(http.stream("POST", "/api/chat", json=body)))
            said = live.until("two, ")
            replay = Stream(stack.enter_context(http.stream("GET", "/api/chat/chat/stream")))
            told = replay.until("two, ")
            house.gate.set()
            rest = live.rest()
            assert replay.rest() == rest
    opening = ["message-start", "start-step", "text-start", "text-delta"]
    assert (names(said), names(told)) == ([*opening, "text-delta"], opening)
    assert names(rest) == ["text-delta", "text-end", "finish-step", "message-finish"]


@pytest.mark.anyio
async def test_a_sequence_stands_for_a_chunk_on_its_own_socket_and_in_its_own_turn_only() -> None:
    async with serving_sockets() as house, opening(house) as page, opening(house) as other:
        await page.send("r1", "hold")
        await page.until_text("r1", "two, ")
        await other.resume("r2", lastSequence=3)
        assert await other.only("r2") == {"type": "no-active", "requestId": "r2"}
        await page.resume("r3", lastSequence=3)
        assert (await page.until("r3", lambda frame: frame["type"] == "start"))[0]["requestId"] == "r3"
        house.gate("chat").release()
        resumed = await page.all("r3")
        assert (texts(resumed), sequences(resumed)) == (["two, ", "three."], [4, 5, 6, 7, 8])
        await page.all("r1")
        await page.send("r4", "hold")
        await page.until_text("r4", "One, ")
        await page.resume("r5", lastSequence=8)
        assert await page.only("r5") == {"type": "no-active", "requestId": "r5"}


def stuck(http: httpx.Client, request: httpx.Request) -> socket.socket:
    """Send a request, and read nothing of what comes."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((http.base_url.host, http.base_url.port))
    body = request.read()
    head = f"{request.method} {request.url.raw_path.decode()} HTTP/1.1\r\nhost: a\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def streams(http: httpx.Client) -> tuple[float, float]:
    """How many streams are open and how many turns run."""
    text = http.get("/metrics").text
    return metric(text, "usechat_streams_open"), metric(text, "usechat_turns_running")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


IMPATIENT = StreamLimits(patience=0.5, behind=256 * 1024)


def asked(http: httpx.Client) -> httpx.Request:
    """A turn of 8 MB, of which the one who asks reads nothing."""
    body = {"id": "chat", "messages": [user("u", "wait")], "size": 8192}
    return http.build_request("POST", "/api/chat", json=body)


def resumed(http: httpx.Client) -> httpx.Request:
    leave(http, asked(http))
    return http.build_request("GET", "/api/chat/chat/stream")


def resumed_continuation(http: httpx.Client) -> httpx.Request:
    """A turn that says little, in a message of 8 MB."""
    body: JSON = {"id": "chat", "messages": [user("u", "delete")], "size": 8 * MEGABYTE}
    assert http.post("/api/chat", json=body).status_code == 200
    body = {"id": "chat", "messages": [approved(Page(http).messages()[-1])]}
    leave(http, http.build_request("POST", "/api/chat", json=body))
    return http.build_request("GET", "/api/chat/chat/stream")


def leave(http: httpx.Client, request: httpx.Request) -> None:
    """Begin a turn and read no more than its beginning."""
    response = http.send(request, stream=True)
    Stream(response).until('"delta":"two, "')
    response.close()
    until(lambda: streams(http) == (0, 1))


@pytest.mark.parametrize("opened", [asked, resumed, resumed_continuation])
@pytest.mark.parametrize("over", [False, True])
def test_a_reader_that_never_reads_is_given_up_and_the_turn_goes_on(
    opened: Callable[[httpx.Client], httpx.Request], over: bool
) -> None:
    with gated(ChatSettings(value_limit=16 * MEGABYTE), stream=IMPATIENT) as (house, http):
        with stuck(http, opened(http)):
            until(lambda: streams(http)[0] == 1)
            if over:
                house.gate.set()
            until(lambda: streams(http)[0] == 0)
            if not over:
                assert streams(http) == (0, 1)
                house.gate.set()
            until(lambda: streams(http) == (0, 0))
        last = Page(http).messages()[-1]
        assert last["parts"][-1]["text"].removeprefix("One, two, ").strip("x") == "three."
