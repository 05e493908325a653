"""What whoever runs the gateway sees of it: metrics, alerts, and a line a turn."""

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.requests import HTTPConnection

from support.gateways import Gateway, serving_gateway, until_chunk
from usechat.cli.listening import JsonFormatter

pytestmark = pytest.mark.anyio

RULES = Path(__file__).parents[2] / "docs" / "prometheus" / "agent-ops.rules.yml"
# The rows of the RFC's "Metrics to Track".
ROWS = {
    "adapter.request.count": "usechat_turns_started_total",
    "adapter.request.error_rate": 'usechat_turns_ended_total{outcome="error"}',
    "adapter.latency.ttfb_p99": "usechat_first_byte_seconds_count",
    "adapter.latency.turn_duration_p99": "usechat_turn_seconds_count",
    "adapter.ws.open_failures": "adapter_ws_open_failures_total",
    "adapter.stream.aborts.client": 'adapter_stream_aborts_total{by="client"}',
    "adapter.stream.aborts.server": 'adapter_stream_aborts_total{by="server"}',
    "adapter.translation.unknown_events": 'usechat_events_dropped_total{why="unknown"}',
}


async def read_metrics(gateway: Gateway) -> dict[str, float]:
    text = (await gateway.http.get(f"{gateway.url}/metrics")).text
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in text.splitlines()) if name[0] != "#"
    }


async def counted(gateway: Gateway) -> dict[str, float]:
    """Each row of the RFC that is not 0, without the part of its name that all have."""
    metrics = await read_metrics(gateway)
    return {row.removeprefix("adapter."): metrics[name] for row, name in ROWS.items() if metrics[name]}


async def test_each_row_of_the_rfc_is_counted() -> None:
    both = {"latency.ttfb_p99", "latency.turn_duration_p99"}
    async with serving_gateway() as gateway:
        assert await counted(gateway) == {}
        await gateway.ask("Hello")
        assert await counted(gateway) == {"request.count": 1, **dict.fromkeys(both, 1)}
        await gateway.ask("noise")
        assert await counted(gateway) == {
            "request.count": 2,
            **dict.fromkeys(both, 2),
            "translation.unknown_events": 1,
        }
        await gateway.ask("fail")
        assert await gateway.metric(ROWS["adapter.request.error_rate"]) == 1
        await gateway.ask("drop")
        assert await counted(gateway) == {
            "request.count": 4,
            "request.error_rate": 2,
            **dict.fromkeys(both, 4),
            "stream.aborts.server": 1,
            "translation.unknown_events": 1,
        }


async def test_a_client_that_leaves_is_an_abort_of_the_client() -> None:
    async with serving_gateway() as gateway:
        async with gateway.asking("hang") as stream:
            await until_chunk(stream, type="text-delta")
        await gateway.agent.until(lambda: bool(gateway.agent.received("abort")))
        seen = await counted(gateway)
    assert seen["stream.aborts.client"] == 1
    assert "stream.aborts.server" not in seen


async def test_a_session_that_cannot_be_reached_is_an_open_failure() -> None:
    async with serving_gateway() as gateway:
        await gateway.ask("die")
        before = await counted(gateway)
        await gateway.ask("Hello")
        seen = await counted(gateway)
    assert "ws.open_failures" not in before
    assert (seen["ws.open_failures"], seen["request.error_rate"]) == (1, 2)
    assert seen["stream.aborts.server"] == 2


async def test_the_first_byte_is_timed_from_the_request_on() -> None:
    async def slow(_connection: HTTPConnection) -> str:
        await asyncio.sleep(0.2)
        return "ana"

    async with serving_gateway(authenticate=slow) as gateway:
        await gateway.ask("Hello")
        assert (await read_metrics(gateway))["usechat_first_byte_seconds_sum"] >= 0.2


async def test_the_alerts_have_the_thresholds_of_the_rfc_and_metrics_that_there_are() -> None:
    [group] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules: dict[str, str] = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    assert {name: expr.rpartition(" > ")[2] for name, expr in rules.items()} == {
        "AgentOpsErrors": "0.05",
        "AgentOpsSlowFirstByte": "0.5",
        "AgentOpsSocketsDoNotOpen": "0",
        "AgentOpsServerAborts": "0.01",
        "AgentOpsUnknownEvents": "0",
    }
    async with serving_gateway() as gateway:
        samples = await read_metrics(gateway)
    named = {metric for expr in rules.values() for metric in re.findall(r"(?:adapter|usechat)_\w+(?:\{[^}]*\})?", expr)}
    assert len(named) == 7
    assert named - {*samples, *(sample.partition("{")[0] for sample in samples)} == set()
    # Else the threshold would be guessed from the buckets beside it.
    assert 'usechat_first_byte_seconds_bucket{le="0.5"}' in samples


def lines_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if hasattr(record, "fields")]


async def test_each_turn_is_a_line_with_its_ids_and_nothing_that_was_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "usechat")
    async with serving_gateway() as gateway:
        response = await gateway.post("chat", json={**_asks("a secret word"), "id": "c 1"})
        await gateway.ask("fail a secret word", chat="failed")
    done, failed = lines_of(caplog)
    turn = response.headers["x-usechat-turn"]
    number = r"[0-9.]+"
    assert re.fullmatch(
        rf'turn={turn} session=s1 chat="c 1" user=ana outcome=done ttfb={number} chunks=\d+ '
        rf"bytes=\d+ duration={number}",
        done.getMessage(),
    )
    as_json = json.loads(JsonFormatter().format(done))
    assert {name: as_json[name] for name in ("turn", "session", "chat", "user", "outcome", "level")} == {
        "turn": turn,
        "session": "s1",
        "chat": "c 1",
        "user": "ana",
        "outcome": "done",
        "level": "info",
    }
    assert 0 <= as_json["ttfb"] <= as_json["duration"]
    assert as_json["chunks"] == response.text.count("data: {")
    assert as_json["bytes"] == len(response.content) - len("data: [DONE]\n\n")
    assert "outcome=error" in failed.getMessage()
    assert "secret" not in caplog.text


def _asks(text: str) -> dict[str, Any]:
    return {"messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}]}
