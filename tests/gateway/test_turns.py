"""Whose turn a stream shows, and what of it is stopped when its client leaves, stops, or does not read."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from websockets.asyncio.server import ServerConnection, serve

import usechat.integrations.agent_ops.following as driver
from support.fast_loop import hurrying, run_fast
from support.gateways import FAILED, SETTINGS, Gateway, serving_gateway, until_chunk
from support.loopback import free_port, message, parts
from support.session_clients import joined
from usechat.integrations.agent_ops.options import SocketLimits
from usechat.session_agent import SessionSettings

pytestmark = pytest.mark.anyio

QUEUED = {"status": "queued", "position": 1}


async def with_bob(gateway: Gateway) -> None:
    await gateway.headers("bob")
    await gateway.directory.grant("s1", "bob", "collaborator")


async def gone(gateway: Gateway, user: str) -> None:
    """Wait until the user has no socket upstream."""
    await gateway.agent.until(lambda: all(one.user.id != user for one in gateway.agent.sockets))


def aborts(gateway: Gateway) -> list[str]:
    return [received.user for received in gateway.agent.received("abort")]


async def counts(gateway: Gateway, by: str) -> float:
    return await gateway.metric(f'adapter_stream_aborts_total{{by="{by}"}}')


async def test_a_client_that_leaves_aborts_its_running_turn() -> None:
    async with serving_gateway() as gateway:
        async with gateway.asking("hang") as stream:
            await until_chunk(stream, type="text-delta")
        await gateway.agent.until(lambda: aborts(gateway) == ["ana"])
        await gone(gateway, "ana")
        assert await counts(gateway, "client") == 1
        assert await counts(gateway, "server") == 0


async def test_a_stop_ends_the_stream_with_abort_and_aborts_the_turn() -> None:
    async with serving_gateway() as gateway, gateway.asking("hang", chat="a/b") as stream:
        await until_chunk(stream, type="text-delta")
        assert (await gateway.post("chat/other/stop")).status_code == 204
        assert (await gateway.post("chat/a%2Fb/stop")).status_code == 204
        rest = [chunk async for chunk in stream]
        assert rest[-1] == {"type": "abort"}
        await gateway.agent.until(lambda: aborts(gateway) == ["ana"])


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_prompt_that_waits_is_withdrawn_without_an_abort_of_what_runs(leaves: bool) -> None:
    async with serving_gateway() as gateway:
        await with_bob(gateway)
        async with gateway.asking("hang", user="bob") as bobs:
            await until_chunk(bobs, type="text-delta")
            async with gateway.asking("Hello") as anas:
                await until_chunk(anas, type="data-agent-status", data=QUEUED)
                if not leaves:
                    await gateway.post("chat/c/stop")
                    assert [chunk["type"] async for chunk in anas] == ["abort"]
            assert aborts(gateway) == []
            assert [one.user.id for one in gateway.agent.sockets] == ["bob", "ana"]
            gateway.agent.session("s1").release()
            rest = [chunk async for chunk in bobs]
            assert rest[-1]["type"] == "finish"
        await gateway.agent.until(lambda: aborts(gateway) == ["ana"])
        await gone(gateway, "ana")
        assert (await gateway.parts("Hello again"))[-1]["text"] == "You said: Hello again"


@pytest.mark.parametrize("user", ["ana", "cy"])
async def test_a_prompt_that_was_withdrawn_costs_nobody_else_theirs(user: str) -> None:
    """The abort of the one drops all that wait behind it, so that those wait here."""
    async with serving_gateway() as gateway:
        await with_bob(gateway)
        await gateway.headers("cy")
        await gateway.directory.grant("s1", "cy", "collaborator")
        async with gateway.asking("hang", user="bob") as bobs:
            await until_chunk(bobs, type="text-delta")
            async with gateway.asking("Hello") as anas:
                await until_chunk(anas, type="data-agent-status", data=QUEUED)
            async with gateway.asking("Hello again", user=user) as stream:
                await until_chunk(stream, type="data-agent-status", data={"status": "queued", "position": 2})
                gateway.agent.session("s1").release()
                assert [chunk["type"] async for chunk in bobs][-1] == "finish"
                rest = [chunk async for chunk in stream]
        assert "".join(chunk.get("delta", "") for chunk in rest) == "You said: Hello again"
        assert rest[-1]["type"] == "finish"
        assert aborts(gateway) == ["ana"]


async def test_a_prompt_that_waits_for_a_withdrawn_one_is_never_sent_if_it_is_stopped() -> None:
    async with serving_gateway() as gateway:
        await with_bob(gateway)
        async with gateway.asking("hang", user="bob") as bobs:
            await until_chunk(bobs, type="text-delta")
            async with gateway.asking("Hello") as anas:
                await until_chunk(anas, type="data-agent-status", data=QUEUED)
            async with gateway.asking("Hello again") as stream:
                await until_chunk(stream, type="data-agent-status", data={"status": "queued", "position": 2})
                await gateway.post("chat/c/stop")
                assert [chunk["type"] async for chunk in stream] == ["abort"]
            assert await counts(gateway, "client") == 2
            gateway.agent.session("s1").release()
            assert [chunk["type"] async for chunk in bobs][-1] == "finish"
        await gone(gateway, "ana")
        assert [one.message["content"] for one in gateway.agent.received("prompt", user="ana")] == ["Hello"]


async def test_another_users_turn_is_not_shown() -> None:
    async with serving_gateway() as gateway:
        await with_bob(gateway)
        async with gateway.asking("hang", user="bob") as bobs:
            await until_chunk(bobs, type="text-delta")
            asked = asyncio.create_task(gateway.parts("Hello"))
            await gateway.agent.until(lambda: len(gateway.agent.received("prompt", user="ana")) == 1)
            gateway.agent.session("s1").unsolicited("Nobody asked for this.")
            gateway.agent.session("s1").release()
            shown = [part["text"] for part in await asked if part["type"] == "text"]
        assert shown == ["You said: Hello"]


async def test_silence_ends_the_turn_with_an_error_and_an_abort() -> None:
    async with serving_gateway(msgspec.structs.replace(SETTINGS, idle=0.5)) as gateway:
        body = await gateway.ask("hang")
        assert '"errorText":"The agent did not answer in time."' in body
        await gateway.agent.until(lambda: aborts(gateway) == ["ana"])
        await gone(gateway, "ana")
        assert await counts(gateway, "server") == 1
        assert await gateway.metric(FAILED) == 1


def test_silence_does_not_count_while_the_prompt_waits_or_a_question_is_open() -> None:
    # The question lasts longer than the silence that is allowed, and so does bob's turn.
    settings, agent = msgspec.structs.replace(SETTINGS, idle=60.0), SessionSettings(question_seconds=100)

    async def wait() -> None:
        async with serving_gateway(settings, agent=agent, seconds=None) as gateway:
            await with_bob(gateway)
            async with gateway.asking("question", user="bob") as bobs:
                await until_chunk(bobs, type="data-question")
                waiting = asyncio.create_task(gateway.parts("Hello"))
                await gateway.agent.until(lambda: bool(gateway.agent.received("prompt", user="ana")))
                with hurrying(200):
                    expired = await until_chunk(bobs, type="data-question")
                assert expired["data"]["state"] == "expired"
                assert (await until_chunk(bobs, type="finish"))["type"] == "finish"
            assert (await waiting)[-1]["text"] == "You said: Hello"

    run_fast(wait())


async def test_a_second_message_of_a_chat_waits_and_replaces_nothing() -> None:
    async with serving_gateway() as gateway:
        async with gateway.asking("hang") as first:
            await until_chunk(first, type="text-delta")
            second = asyncio.create_task(gateway.parts("Hello"))
            third = asyncio.create_task(gateway.post("chat/none/stop"))
            assert (await third).status_code == 204
            gateway.agent.session("s1").release()
            assert [chunk["type"] async for chunk in first][-1] == "finish"
        assert (await second)[-1]["text"] == "You said: Hello"
        assert aborts(gateway) == []


@pytest.mark.parametrize("trigger", ["submit-message", "regenerate-message"])
async def test_a_second_message_waits_for_a_bounded_time(trigger: str) -> None:
    settings = msgspec.structs.replace(SETTINGS, queue_seconds=0.2)
    async with serving_gateway(settings) as gateway, gateway.asking("hang") as first:
        start = await until_chunk(first, type="start")
        await until_chunk(first, type="text-delta")
        for message_id in (None, start["messageId"]):
            body = {**message("Hello", "c"), "trigger": trigger, "messageId": message_id}
            refused = await gateway.post("chat", json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "CONFLICT")
        assert aborts(gateway) == []
        gateway.agent.session("s1").release()
        assert [chunk["type"] async for chunk in first][-1] == "finish"


class Unread:
    """A client that asks and does not read, with buffers so small that this is felt at once."""

    async def __aenter__(self) -> "Unread":
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        self._socket.close()

    async def rest(self) -> bytes:
        """All that comes to the end of the response."""
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            some = await asyncio.get_running_loop().sock_recv(self._socket, 65536)
            assert some, body[-200:]
            body = body[-65536:] + some
        return body

    async def ask(self, gateway: Gateway, text: str) -> None:
        loop, body = asyncio.get_running_loop(), msgspec.json.encode(message(text, "unread"))
        headers = {**await gateway.headers("ana"), "host": "x", "content-type": "application/json"}
        lines = [*(f"{name}: {value}" for name, value in headers.items()), f"content-length: {len(body)}"]
        head = "\r\n".join(["POST /api/sessions/s1/chat HTTP/1.1", *lines, "", ""])
        port = int(gateway.url.rpartition(":")[2])
        await loop.sock_connect(self._socket, ("127.0.0.1", port))
        await loop.sock_sendall(self._socket, head.encode() + body)


async def test_a_client_that_does_not_read_is_given_up_and_the_session_is_read_no_further() -> None:
    settings = msgspec.structs.replace(SETTINGS, behind=64 * 1024, patience=0.5)
    async with serving_gateway(settings, send_buffer=16 * 1024) as gateway, Unread() as client:
        await client.ask(gateway, "flood 64")
        await gone_after_prompt(gateway)
        assert aborts(gateway) == ["ana"]
        assert await counts(gateway, "server") == 1
        assert await gateway.metric(FAILED) == 1
        # Of 64 MB nearly all stayed where it was.
        assert await gateway.metric("adapter_ws_open") == 0


def test_a_client_that_reads_again_is_told_that_it_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # The only ping that comes is that of the end.
    monkeypatch.setattr(driver, "_PING_SECONDS", 3600.0)
    settings = msgspec.structs.replace(SETTINGS, behind=64 * 1024, patience=20.0)

    async def read_again() -> None:
        async with serving_gateway(settings, send_buffer=16 * 1024) as gateway, Unread() as client:
            await client.ask(gateway, "flood 8")
            with hurrying(100):
                await gateway.agent.until(lambda: bool(gateway.agent.received("ping", user="ana")))
            body = await client.rest()
            assert b'"errorText":"The answer was not read in time."' in body
            assert body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")

    run_fast(read_again())


def taking_a_moment(app: ASGIApp) -> ASGIApp:
    """A server that lets others run before it takes what it is sent."""

    async def serve_slowly(scope: Scope, receive: Receive, send: Send) -> None:
        async def take(message: Message) -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            await send(message)

        await app(scope, receive, take)

    return serve_slowly


async def test_a_slow_client_that_catches_up_lets_the_agent_go_on() -> None:
    """Each piece is more than a client may have left to read, so that the agent waits until it was sent."""
    settings = msgspec.structs.replace(SETTINGS, behind=1024, patience=3600.0, keep_alive=3600.0, idle=3600.0)
    async with serving_gateway(settings, mount=taking_a_moment) as gateway:
        body = await gateway.ask("flood 1")
    assert (body.count('"text-delta"'), body[-14:]) == (64, "data: [DONE]\n\n")


async def gone_after_prompt(gateway: Gateway) -> None:
    await gateway.agent.until(lambda: bool(gateway.agent.received("prompt", user="ana")))
    await gone(gateway, "ana")


async def test_a_turn_that_ended_unread_is_not_aborted_when_somebody_elses_runs() -> None:
    settings = msgspec.structs.replace(SETTINGS, behind=64 * 1024, patience=60.0)
    async with serving_gateway(settings, send_buffer=16 * 1024) as gateway, Unread() as client:
        await with_bob(gateway)
        await client.ask(gateway, "long 6000")
        async with gateway.asking("hang", user="bob") as bobs:
            await until_chunk(bobs, type="text-delta")
            assert any(one.user.id == "ana" for one in gateway.agent.sockets)
            client.leave()
            await gone(gateway, "ana")
            assert aborts(gateway) == []
            gateway.agent.session("s1").release()
            assert [chunk["type"] async for chunk in bobs][-1] == "finish"


async def regenerate(gateway: Gateway, text: str, **options: Any) -> None:
    body = {**message(text, "c"), "trigger": "regenerate-message"}
    assert (await gateway.post("chat", json=body, **options)).status_code == 200


async def test_an_answer_that_is_wanted_again_takes_its_prompt_back_first() -> None:
    async with serving_gateway() as gateway:
        await gateway.ask("Hello")
        await regenerate(gateway, "Hello")
        await regenerate(gateway, "Hello")
        assert len(gateway.agent.received("prompt")) == 3
        first, second = (one.message["messageId"] for one in gateway.agent.received("revert"))
        assert first != second
        async with joined(gateway.agent) as client:
            said = [(one["role"], one["content"]) for one in client.heard[0]["session"]["messages"]]
        assert said == [("user", "Hello"), ("assistant", "You said: Hello")]


async def test_a_message_that_the_gateway_does_not_know_is_asked_again() -> None:
    async with serving_gateway() as gateway:
        await regenerate(gateway, "Hello")
        assert gateway.agent.received("revert") == []
        assert len(gateway.agent.received("prompt")) == 1


@pytest.mark.parametrize(("user", "chat"), [("bob", "c"), ("ana", "another")])
async def test_nothing_is_taken_back_that_somebody_or_another_chat_has_said_since(user: str, chat: str) -> None:
    async with serving_gateway() as gateway:
        await with_bob(gateway)
        await gateway.ask("Hello")
        await gateway.ask("Me too", user=user, chat=chat)
        await regenerate(gateway, "Hello")
        assert gateway.agent.received("revert") == []
        assert [one.message["content"] for one in gateway.agent.received("prompt", user="ana")][-1] == "Hello"


@pytest.mark.parametrize("user", ["ana", "bob"])
async def test_a_question_is_answered_by_whoever_may(user: str) -> None:
    async with serving_gateway() as gateway:
        await with_bob(gateway)
        async with gateway.asking("question Really?") as stream:
            question = (await until_chunk(stream, type="data-question"))["data"]
            assert question["text"] == "Really?"
            wrong = await gateway.post("answer", user=user, json={"questionId": "none", "answer": "yes"})
            assert (wrong.status_code, wrong.json()["code"]) == (404, "NOT_FOUND")
            given = {"questionId": question["questionId"], "answer": question["options"][0]}
            assert (await gateway.post("answer", user=user, json=given)).status_code == 204
            answered = (await until_chunk(stream, type="data-question"))["data"]
            assert (answered["state"], answered["answer"]) == ("answered", question["options"][0])
            assert (await until_chunk(stream, type="finish"))["finishReason"] == "stop"
        again = await gateway.post("answer", user=user, json=given)
        assert again.status_code == 404
        # The session takes it for the answer of whoever has the socket.
        assert [one.user for one in gateway.agent.received("answer")] == [user]


async def test_a_question_of_the_later_kind_is_answered_by_whoever_may() -> None:
    answers: list[Any] = []

    async def upstream(connection: ServerConnection) -> None:
        prompt = {"id": "q1", "type": "approval", "title": "Deploy?"}
        for frame in ({"type": "init"}, {"type": "interactive_prompt", "prompt": prompt}, {"type": "user.joined"}):
            await connection.send(json.dumps(frame))
        async for sent in connection:
            answers.append(json.loads(sent))

    async with serve(upstream, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with serving_gateway(upstream=f"ws://127.0.0.1:{port}") as gateway:
            missing = await gateway.post("answer", json={"questionId": "q2", "answer": True})
            given = await gateway.post("answer", json={"questionId": "q1", "answer": False})
    assert (missing.status_code, given.status_code) == (404, 204)
    assert answers == [{"type": "answer", "questionId": "q1", "answer": False}]


@pytest.mark.parametrize("body", [{"questionId": "q"}, {"answer": "x"}, {"questionId": "q", "answer": 1}, [], "x"])
async def test_an_answer_has_a_question_and_a_text_or_a_boolean(body: Any) -> None:
    async with serving_gateway() as gateway:
        response = await gateway.post("answer", json=body)
        assert (response.status_code, response.json()["code"]) == (400, "VALIDATION_ERROR")


async def test_channels_are_those_of_the_session_and_the_default() -> None:
    default = {"channelType": "web", "channelId": "default"}
    async with serving_gateway() as gateway:
        assert (await gateway.get("channels")).json() == {"channels": [default]}
        async with gateway.asking("Hello", query="?channelType=slack&channelId=C1") as stream:
            text = "".join([chunk["delta"] async for chunk in stream if chunk["type"] == "text-delta"])
        assert text == "You said: Hello"
        slack = {"channelType": "slack", "channelId": "C1"}
        assert (await gateway.get("channels")).json() == {"channels": [default, slack]}


async def test_a_session_that_cannot_be_reached_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving_gateway(upstream=f"ws://127.0.0.1:{free_port()}") as gateway:
        await gateway.ask("Hello")
        await gateway.get("channels")
    lines = [record for record in caplog.records if "Connection failed" in record.getMessage()]
    assert [(record.exc_info, "Connect call failed" in record.getMessage()) for record in lines] == [(None, True)] * 2


async def test_a_session_that_cannot_be_reached_is_an_error_of_the_stream() -> None:
    async with serving_gateway() as gateway:
        gateway.agent.session("s1")
        await gateway.ask("die")
        body = await gateway.ask("Hello", chat="d")
        assert '"errorText":"Connection failed"' in body
        assert parts(body) == []
        assert await gateway.metric("adapter_ws_open_failures_total") == 1
        assert await gateway.metric("adapter_ws_open") == 0
        unreachable = await gateway.get("channels")
        assert (unreachable.status_code, unreachable.json()["code"]) == (502, "BAD_GATEWAY")


async def test_a_stop_while_the_socket_is_opened_is_an_abort_of_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        upstream = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        async with serving_gateway(upstream=upstream) as gateway, gateway.asking("Hello") as stream:
            await until_chunk(stream, type="start")
            connection, _ = await asyncio.to_thread(silent.accept)
            with connection:
                await gateway.post("chat/c/stop")
            assert [chunk["type"] async for chunk in stream] == ["abort"]
            assert await counts(gateway, "client") == 1
            assert await counts(gateway, "server") == 0
            assert await gateway.metric("adapter_ws_open") == 0


async def test_a_handshake_that_is_not_answered_is_an_error_of_the_stream() -> None:
    settings = msgspec.structs.replace(SETTINGS, sockets=SocketLimits(open_seconds=0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        upstream = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        async with serving_gateway(settings, upstream=upstream) as gateway:
            assert '"errorText":"Connection failed"' in await gateway.ask("Hello")


@pytest.mark.parametrize("own", ["", "of-the-gateway"])
async def test_the_socket_has_the_users_token_or_the_gateways_own(own: str) -> None:
    seen: list[tuple[str, str]] = []

    async def upstream(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append((connection.request.path, connection.request.headers["Authorization"]))

    settings = msgspec.structs.replace(SETTINGS, upstream_token=own or None)
    async with serve(upstream, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with serving_gateway(settings, upstream=f"ws://127.0.0.1:{port}/") as gateway:
            await gateway.directory.add_session("a/b:c", "ana")
            assert '"errorText":"Stream interrupted"' in await gateway.ask("Hello", session="a/b:c")
            expected = f"Bearer {own}" if own else (await gateway.headers("ana"))["authorization"]
    assert seen == [("/api/sessions/a%2Fb%3Ac/ws?role=client&userId=ana", expected)]


async def test_a_turn_that_was_aborted_upstream_was_stopped() -> None:
    async with serving_gateway() as gateway:
        assert '{"type":"abort"}' in await gateway.ask("cancel")
        lines = (await gateway.http.get(f"{gateway.url}/metrics")).text
        assert 'usechat_turns_ended_total{outcome="stopped"} 1.0' in lines


async def test_nothing_is_taken_back_where_a_session_does_not_list_its_messages() -> None:
    async with slim_upstream() as (upstream, received), serving_gateway(upstream=upstream) as gateway:
        await gateway.ask("Hello")
        await regenerate(gateway, "Hello")
    assert received == ["prompt", "prompt"]


@asynccontextmanager
async def slim_upstream() -> AsyncGenerator[tuple[str, list[str]]]:
    """A session whose greeting has no messages, and that answers each prompt at once."""
    received: list[str] = []

    async def session(connection: ServerConnection) -> None:
        async def send(kind: str, **fields: Any) -> None:
            await connection.send(json.dumps({"type": kind, **fields}))

        await send("init", session={"id": "s1"}, data={"runnerBusy": False, "promptsQueued": 0})
        async for raw in connection:
            message = json.loads(raw)
            received.append(message["type"])
            echo = {"id": f"e{len(received)}", "role": "user", "content": message["content"], "authorId": "ana"}
            await send("message", data=echo)
            await send("message", data={"id": f"t{len(received)}", "role": "assistant", "content": "", "parts": []})
            await send("chunk", content="Yes.", messageId=f"t{len(received)}")
            await send("audit_log", entry={"eventType": "agent.turn_complete"})

    async with serve(session, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", received


async def test_who_has_withdrawn_many_prompts_leaves_room_for_others() -> None:
    limits = SocketLimits(per_session=4, per_user=2)
    async with serving_gateway(msgspec.structs.replace(SETTINGS, sockets=limits)) as gateway:
        await with_bob(gateway)
        async with gateway.asking("hang", user="bob") as bobs:
            await until_chunk(bobs, type="text-delta")
            async with gateway.asking("Hello", chat="1") as first, gateway.asking("Hello", chat="2") as second:
                await until_chunk(first, type="data-agent-status")
                await until_chunk(second, type="data-agent-status")
            refused = await gateway.post("chat", json=message("Hello", "3"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert (await gateway.get("channels", user="bob")).status_code == 200
            gateway.agent.session("s1").release()
            assert [chunk["type"] async for chunk in bobs][-1] == "finish"
        await gone(gateway, "ana")


async def test_an_upstream_that_hangs_up_at_once_is_a_connection_that_failed() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        upstream = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with serving_gateway(upstream=upstream) as gateway:
            assert '"errorText":"Connection failed"' in await gateway.ask("Hello")
            assert (await gateway.get("channels")).status_code == 502
            assert await gateway.metric("adapter_ws_open_failures_total") == 2
