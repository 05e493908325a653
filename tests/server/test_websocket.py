import asyncio
import gc
import logging
from typing import Any

import pytest
from starlette.websockets import WebSocket
from uvicorn.logging import TRACE_LOG_LEVEL
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from support.fast_loop import hurrying, run_fast
from support.sockets import JSON, House, Page, chunks, error, opening, pondering, sequences, serving, stuck, texts
from usechat.server.responses import StreamLimits
from usechat.server.websocket import SocketRequest
from usechat.turns.turn import Turn

pytestmark = pytest.mark.anyio


async def test_a_send_is_answered_with_the_chunks_of_its_turn_and_an_end():
    async with serving() as house, opening(house) as page:
        await page.send("r1", "hello")
        frames = await page.all("r1")
        start, step, text = frames[0]["chunk"], frames[1]["chunk"], frames[2]["chunk"]
        expected: list[JSON] = [
            {"type": "start", "messageId": start["messageId"]},
            step,
            {"type": "text-start", "id": text["id"]},
            {"type": "text-delta", "id": text["id"], "delta": "You said hello."},
            {"type": "text-end", "id": text["id"]},
            {"type": "finish-step"},
            {"type": "finish", "finishReason": "stop"},
        ]
        assert frames == [
            *(
                {"type": "chunk", "requestId": "r1", "sequence": number, "chunk": chunk}
                for number, chunk in enumerate(expected)
            ),
            {"type": "end", "requestId": "r1"},
        ]
        assert await house.ends.get() == ("done", "You said hello.")
        assert await house.kept("chat") == ["hello", "You said hello."]


async def test_the_agent_gets_the_body_the_metadata_and_the_headers_of_the_frame():
    names = [Subprotocol("usechat"), Subprotocol("bearer.abc")]
    handshake: JSON = {"additional_headers": {"x-proxy": "true", "cookie": "session=1"}, "subprotocols": names}
    async with serving() as house, opening(house, **handshake) as page:
        headers = {"X-Tenant": "acme", "x-proxy": "forged", "authorization": "Bearer abc"}
        await page.send("r1", "hello", headers=headers, body={"model": "m"}, metadata={"a": 1})
        await page.all("r1")
        request = house.chats[0].request
        assert request.body == {"model": "m", "metadata": {"a": 1}}
        names = ("x-tenant", "x-proxy", "authorization", "cookie", "sec-websocket-protocol")
        assert [request.headers.get(name) for name in names] == ["acme", "true", None, None, None]


async def test_requests_share_a_socket_and_each_counts_its_own_chunks():
    async with serving() as house, opening(house) as page:
        names = [f"r{number}" for number in range(10)]
        for name in names:
            await page.send(name, "hold", chat=f"chat-{name}")
        begun = {name: await page.until_text(name, "two, ") for name in names}
        for name in reversed(names):
            house.gate(f"chat-{name}").release()
            frames = begun[name] + await page.all(name)
            assert texts(frames) == ["One, ", "two, ", "three."]
            assert sequences(frames) == list(range(9))
            assert frames[-1] == {"type": "end", "requestId": name}


async def test_long_answers_take_turns():
    async with serving() as house, opening(house) as page:
        await page.send("r0", "write 400")
        await page.until("r0", lambda frame: frame.get("sequence") == 402)
        await page.resume("r1", lastSequence=2)
        await page.resume("r2", lastSequence=2)
        first = await page.until("r2", lambda frame: frame["type"] == "chunk")
        assert sequences(first) == [3]
        assert len(texts(page.unread("r1"))) < 200
        assert len(texts(await page.until("r1", lambda frame: frame.get("sequence") == 402))) == 400
        # A page that leaves the rest unread closes late.
        await page.until("r2", lambda frame: frame.get("sequence") == 402)


async def test_a_resume_replays_the_turn_and_follows_it():
    async with serving() as house, opening(house) as page, opening(house) as other:
        await page.send("r1", "hold")
        before = await page.until_text("r1", "two, ")
        await other.resume("r2")
        replayed = await other.until_text("r2", "One, two, ")
        house.gate("chat").release()
        frames = replayed + await other.all("r2")
        assert frames[0] == {"type": "start", "requestId": "r2"}
        assert chunks(frames)[0] == before[0]["chunk"]
        assert texts(frames) == ["One, two, ", "three."]
        assert sequences(frames) == list(range(8))
        assert frames[-1] == {"type": "end", "requestId": "r2"}


@pytest.mark.parametrize(("seen", "tail"), [(2, ["One, ", "two, ", "three."]), (4, ["three."])])
async def test_a_client_that_counts_gets_the_chunks_after_its_last_one(seen: int, tail: list[str]):
    async with serving() as house, opening(house) as page:
        await page.send("r1", "hold")
        await page.until_text("r1", "two, ")
        await page.resume("r2", lastSequence=seen)
        await page.until("r2", lambda frame: frame["type"] == "start")
        house.gate("chat").release()
        resumed, all_along = await page.all("r2"), await page.all("r1")
        assert texts(resumed) == tail
        assert sequences(resumed)[-1] == sequences(all_along)[-1] == 8
        assert sequences(resumed)[0] == seen + 1


async def test_nothing_is_active_in_a_chat_without_a_turn():
    async with serving() as house, opening(house) as page:
        await page.resume("r1")
        assert await page.only("r1") == {"type": "no-active", "requestId": "r1"}
        await page.send("r2", "hello")
        await page.all("r2")
        await house.ends.get()
        await page.resume("r3")
        assert await page.only("r3") == {"type": "no-active", "requestId": "r3"}


async def test_nothing_is_active_of_a_turn_that_was_longer():
    async with serving() as house, opening(house) as page:
        await page.send("r1", "hold")
        await page.until_text("r1", "two, ")
        await page.resume("r2", lastSequence=5)
        assert await page.only("r2") == {"type": "no-active", "requestId": "r2"}


async def test_an_abort_stops_its_turn_and_no_other():
    async with serving() as house, opening(house) as page:
        for name in ("r1", "r2"):
            await page.send(name, "hold", chat=name)
            await page.until_text(name, "two, ")
        await page.abort("r1")
        await page.abort("r1")
        await page.abort("unknown")
        assert await house.ends.get() == ("stopped", "One, two, ")
        house.gate("r2").release()
        assert texts(await page.all("r2")) == ["three."]
        assert await house.kept("r1") == ["hold", "One, two, "]


async def test_an_aborted_request_gets_no_more_frames_but_other_readers_do():
    async with serving() as house, opening(house) as page, opening(house) as other:
        await page.send("r1", "hold")
        await page.until_text("r1", "two, ")
        await other.resume("r2")
        await other.until_text("r2", "One, two, ")
        await page.abort("r1")
        kinds = [chunk["type"] for chunk in chunks(await other.all("r2"))]
        assert kinds == ["text-end", "finish-step", "abort"]
        await page.resume("r3")
        assert await page.only("r3") == {"type": "no-active", "requestId": "r3"}
        assert page.unread("r1") == []


async def test_an_abort_stops_a_turn_that_waits_to_begin():
    async with serving(conflict="queue") as house, opening(house) as page:
        await page.send("r1", "hold")
        await page.until_text("r1", "two, ")
        await page.send("r2", "hold again")
        await page.abort("r2")
        await page.send("r3", "hold", chat="marker")
        await page.until_text("r3", "two, ")
        house.gate("chat").release()
        assert [await house.ends.get(), await house.ends.get()] == [("done", "One, two, three."), ("stopped", "")]
        assert await house.kept("chat") == ["hold", "One, two, three.", "hold again"]


async def resumed_and_aborted(house: House, page: Page, chat: str = "chat") -> None:
    request = f"resume {chat}"
    async with opening(house) as first:
        await first.send("r1", "hold", chat=chat)
        await first.until_text("r1", "two, ")
        await page.resume(request, chat=chat)
        await page.until_text(request, "One, two, ")
    await page.abort(request)


async def test_an_abort_of_a_resume_stops_the_turn_too():
    async with serving(sockets=pondering(0.01)) as house, opening(house) as page:
        await resumed_and_aborted(house, page)
        assert await house.ends.get() == ("stopped", "One, two, ")


def test_a_page_that_resumes_again_stops_nothing():
    async def main() -> None:
        async with serving(linger=0, sockets=pondering(30)) as house, opening(house) as page:
            await resumed_and_aborted(house, page)
            await page.resume("r3")
            await page.until_text("r3", "One, two, ")
            with hurrying(30):
                # By then the aborted resume would have stopped the turn.
                await asyncio.sleep(31)
            house.gate("chat").release()
            assert texts(await page.all("r3")) == ["three."]
            assert await house.ends.get() == ("done", "One, two, three.")

    run_fast(main())


async def test_a_page_that_resumed_again_counts_as_one_reader():
    async with serving(linger=0, sockets=pondering(3600)) as house:
        async with opening(house) as page:
            await resumed_and_aborted(house, page)
            await page.resume("r3")
            await page.until_text("r3", "One, two, ")
        assert await house.ends.get() == ("stopped", "One, two, ")


async def test_a_message_after_an_abort_of_a_resume_need_not_wait():
    async with serving(conflict="reject", sockets=pondering(3600)) as house, opening(house) as page:
        await resumed_and_aborted(house, page)
        await page.send("r3", "hello")
        assert texts(await page.all("r3")) == ["You said hello."]
        assert await house.ends.get() == ("stopped", "One, two, ")


async def test_a_page_that_is_closed_after_aborts_of_resumes_has_stopped_their_turns(caplog: pytest.LogCaptureFixture):
    async with serving(sockets=pondering(3600)) as house:
        async with opening(house) as page:
            for chat in ("one", "two"):
                await resumed_and_aborted(house, page, chat)
        assert [await house.ends.get(), await house.ends.get()] == [("stopped", "One, two, ")] * 2
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_closed_socket_leaves_all_its_turns():
    async with serving(linger=0) as house:
        async with opening(house) as page:
            for name in ("r1", "r2"):
                await page.send(name, "hold", chat=name)
                await page.until_text(name, "two, ")
        assert [await house.ends.get() for _ in range(2)] == [("stopped", "One, two, ")] * 2


async def test_a_turn_outlives_its_socket():
    async with serving() as house:
        async with opening(house) as page:
            await page.send("r1", "hold")
            await page.until_text("r1", "two, ")
            page.connection.transport.abort()
        house.gate("chat").release()
        assert await house.ends.get() == ("done", "One, two, three.")


async def test_a_turn_that_begins_after_its_socket_was_closed_has_no_reader():
    async with serving(linger=0, conflict="queue") as house, opening(house) as page:
        await page.send("r1", "hold")
        await page.until_text("r1", "two, ")
        async with opening(house) as other:
            await other.send("r2", "hold again")
            await other.resume("r3", chat="none")
            await other.only("r3")
        house.gate("chat").release()
        assert await house.ends.get() == ("done", "One, two, three.")
        assert (await house.ends.get())[0] == "stopped"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"type": "steer"}, "type must be one of send, resume, abort."),
        ({"headers": {"a": 1}}, "headers must be an object of strings."),
        ({"id": ""}, "id must be a string of 1 to 512 characters without control characters."),
        ({"messages": []}, "messages must not be empty."),
        ({"type": "resume", "lastSequence": -1}, "lastSequence must not be negative."),
    ],
)
async def test_a_bad_frame_gets_an_error_and_the_socket_goes_on(fields: JSON, sentence: str):
    async with serving() as house, opening(house) as page:
        await page.send("r1", "hello", **fields)
        assert await page.only("r1") == error("r1", sentence)
        await page.send("r2", "hello")
        assert texts(await page.all("r2")) == ["You said hello."]


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (b'{"type":"abort","requestId":"r1"}', 1003, "Frames must be text."),
        ("{", 1008, "A frame is not valid JSON."),
        ('{"type":"abort"}', 1008, "A frame must be a JSON object with a type and a requestId."),
    ],
)
async def test_a_frame_that_no_error_can_answer_closes_the_socket(data: str | bytes, code: int, reason: str):
    async with serving(linger=0) as house, opening(house) as page:
        await page.send("r1", "hold")
        await page.until_text("r1", "two, ")
        await page.connection.send(data)
        assert await page.closed() == (code, reason)
        assert await house.ends.get() == ("stopped", "One, two, ")


async def test_a_request_id_cannot_be_used_twice_at_once():
    async with serving(linger=0) as house, opening(house) as page:
        await page.send("r1", "hold")
        await page.until_text("r1", "two, ")
        await page.send("r1", "hello", chat="other")
        assert await page.only("r1") == error("r1", "requestId must not be that of a request that is still open.")
        assert await house.ends.get() == ("stopped", "One, two, ")
        await page.send("r1", "hello")
        assert texts(await page.all("r1")) == ["You said hello."]


async def test_a_socket_has_64_requests_open_and_no_more():
    async with serving() as house, opening(house) as page:
        await page.send("r0", "hold")
        await page.until_text("r0", "two, ")
        for number in range(1, 64):
            await page.resume(f"r{number}")
        await page.resume("r64")
        assert await page.only("r64") == error("r64", "Too many requests are open on this socket.")
        house.gate("chat").release()
        for number in range(64):
            assert texts(await page.all(f"r{number}"))[-1] == "three."
        await page.resume("r65")
        assert await page.only("r65") == {"type": "no-active", "requestId": "r65"}


IMPATIENT = StreamLimits(keep_alive=0.02, patience=0.1)


async def test_a_client_that_does_not_read_is_cut_and_its_turn_lingers():
    async with serving(linger=0, stream=IMPATIENT) as house, stuck(house) as page:
        await page.send("r1", "write 7000")
        assert (await house.ends.get())[0] == "stopped"
        await page.closed()


async def test_a_client_that_only_makes_mistakes_is_cut():
    async with serving(linger=0) as house, stuck(house) as page:

        async def make_mistakes() -> None:
            while True:
                await page.raw({"type": "x", "requestId": "r" * 512})

        await page.send("r1", "hold")
        await page.until_text("r1", "two, ")
        mistakes = asyncio.create_task(make_mistakes())
        assert await house.ends.get() == ("stopped", "One, two, ")
        await page.closed()
        with pytest.raises(ConnectionClosed):
            await mistakes


class Notes(logging.Handler):
    """Waits for a word in a log."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.seen = asyncio.Event()
        self._word = word

    def emit(self, record: logging.LogRecord) -> None:
        if self._word in record.getMessage():
            self.seen.set()


async def test_a_socket_that_the_server_gave_up_leaves_its_turns(caplog: pytest.LogCaptureFixture):
    notes = Notes("ping timeout")
    caplog.set_level(TRACE_LOG_LEVEL, "uvicorn.error")
    logging.getLogger("uvicorn.error").addHandler(notes)
    async with serving(linger=0, ws_ping_interval=0.05, ws_ping_timeout=0.05) as house, stuck(house) as page:
        await page.send("r1", "write 7000")
        await notes.seen.wait()
        await page.closed()
        assert (await house.ends.get())[0] == "stopped"
    logging.getLogger("uvicorn.error").removeHandler(notes)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_streams_and_refusals_are_counted():
    async with serving() as house, opening(house) as page:
        await page.send("r1", "hello")
        frames = await page.all("r1")
        await page.send("r2", "hello", headers=None)
        await page.all("r2")
        await page.send("r3", "hold", chat="other")
        await page.until_text("r3", "two, ")
        metrics = house.endpoint.chats.metrics.render()[0].decode().splitlines()
        assert f"usechat_chunks_sent_total {len(chunks(frames))}.0" in metrics
        assert "usechat_first_byte_seconds_count 2.0" in metrics
        assert "usechat_streams_open 1.0" in metrics
        assert 'usechat_requests_refused_total{status="400"} 1.0' in metrics


async def test_a_socket_keeps_nothing_of_what_is_over():
    async with serving(sockets=pondering(0)) as house, opening(house) as page:
        for number in range(20):
            await page.send(f"over {number}", "hello", chat=f"over {number}")
            await page.all(f"over {number}")
            await house.ends.get()
        await page.send("over", "hold", chat="over")
        await page.until_text("over", "two, ")
        await page.resume("over again", chat="over")
        await page.until_text("over again", "One, two, ")
        await page.abort("over again")
        await page.all("over")
        await house.ends.get()
        house.chats.clear()
        gc.collect()
        kept = [value for value in gc.get_objects() if isinstance(value, SocketRequest | Turn)]
        assert [
            value for value in kept if isinstance(value, SocketRequest) and value.request_id.startswith("over")
        ] == []
        assert [value for value in kept if isinstance(value, Turn) and value.claim.head.chat.startswith("over")] == []


async def test_a_server_that_breaks_its_own_protocol_hears_of_it():
    async def receive() -> JSON:
        return {"type": next(messages)}

    async def send(_: Any) -> None:
        pass

    async with serving() as house:
        messages = iter(["websocket.connect", "websocket.nonsense"])
        websocket = WebSocket({"type": "websocket", "headers": []}, receive, send)
        with pytest.raises(RuntimeError, match="nonsense"):
            await pondering(1)(house.endpoint).serve(websocket)
