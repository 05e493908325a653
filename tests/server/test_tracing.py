"""Each turn is a span, where OpenTelemetry is installed."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Generator
from importlib import import_module

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from starlette.types import ASGIApp, Receive, Scope, Send

from support.gateways import serving_gateway
from support.loopback import ask, serving
from usechat.server.app import create_app
from usechat.stores import TurnLog
from usechat.turns.chat import Chat

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
_EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> Generator[None]:
    """A process has one provider, once and for all; of what comes after these tests it keeps nothing."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))
    trace.set_tracer_provider(provider)
    yield
    _EXPORTER.shutdown()


@pytest.fixture(autouse=True)
def clear() -> None:
    _EXPORTER.clear()


async def agent(chat: Chat) -> AsyncGenerator[str, None]:
    with trace.get_tracer("agent").start_as_current_span("model"):
        yield "Hello"
    if chat.text == "fail":
        raise ValueError("a secret")


def spans() -> dict[str, ReadableSpan]:
    return {span.name: span for span in _EXPORTER.get_finished_spans()}


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def test_a_turn_is_a_span_inside_of_the_one_that_its_request_names() -> None:
    with serving(create_app(agent)) as url:
        turn = ask(f"{url}/api/chat", headers=TRACEPARENT).headers["x-usechat-turn"]
    span = spans()["usechat.turn"]
    assert (trace_id(span), parent_id(span)) == (TRACE, 0xB7AD6B7169203331)
    assert span.attributes is not None
    assert {**span.attributes, "usechat.bytes": 0} == {
        "usechat.turn": turn,
        "usechat.chat": "chat",
        "usechat.outcome": "done",
        "usechat.chunks": 7,
        "usechat.bytes": 0,
    }
    assert span.status.status_code is StatusCode.UNSET
    # What the agent traces is inside.
    assert (trace_id(spans()["model"]), parent_id(spans()["model"])) == (TRACE, span_id(span))


def test_a_turn_that_fails_is_a_span_with_an_error_and_without_its_text() -> None:
    with serving(create_app(agent)) as url:
        ask(f"{url}/api/chat", "fail")
    span = spans()["usechat.turn"]
    assert span.parent is None
    assert (span.status.status_code, span.status.description, span.events) == (StatusCode.ERROR, None, ())
    assert "secret" not in span.to_json()
    assert span.attributes is not None
    assert span.attributes["usechat.outcome"] == "error"


def test_a_turn_is_inside_of_the_span_of_an_instrumented_server() -> None:
    with serving(_Instrumented(create_app(agent))) as url:
        ask(f"{url}/api/chat", headers=TRACEPARENT)
    assert parent_id(spans()["usechat.turn"]) == span_id(spans()["http"])
    assert trace_id(spans()["usechat.turn"]) == trace_id(spans()["http"]) != TRACE


class _Instrumented:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with trace.get_tracer("server").start_as_current_span(scope["type"]):
            await self._app(scope, receive, send)


def test_a_turn_of_the_gateway_names_session_chat_and_user() -> None:
    async def go() -> None:
        async with serving_gateway() as gateway:
            await gateway.ask("Hello", chat="c 1")

    asyncio.run(go())
    attributes = spans()["usechat.turn"].attributes
    assert attributes is not None
    names = [attributes[f"usechat.{name}"] for name in ("session", "chat", "user", "outcome")]
    assert names == ["s1", "c 1", "ana", "done"]


def test_without_the_package_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "usechat.server.tracing", raising=False)
    span = import_module("usechat.server.tracing").begin_span("turn", {}, TRACEPARENT, 0.0)
    span.enter()
    span.end("done", TurnLog("turn"))
    assert spans() == {}
