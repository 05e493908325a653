import asyncio
from typing import Any

import pytest

from flows.play import Play, flow, node, reaches
from support.hang import HANG_SECONDS
from usechat.flows.expressions import WORKERS, Expression, ExpressionError, Scope, Worker, Workers

pytestmark = pytest.mark.anyio

HUNGRY: list[tuple[str, str]] = [
    ("$match(text, /(x+)+$/)", "took longer than 1 s, or needed more than 256 MB."),
    ("[1..9999999]", "took longer than 1 s, or needed more than 256 MB."),
    ("$reduce([1..40], function($all, $_) { $all & $all }, text)", "took longer than 1 s, or needed more than 256 MB."),
    ("$pad('', 5000000)", "returns more than 4 MB."),
    ("$length(huge)", "reads more than 4 MB."),
]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the second of processor time that an expression gets may take longer than 20 seconds."""
    monkeypatch.setattr(WORKERS, "_timeout", HANG_SECONDS)


@pytest.mark.parametrize(("text", "said"), HUNGRY)
async def test_an_expression_that_takes_too_much_is_ended_while_all_else_goes_on(text: str, said: str):
    names = {"huge": "x" * 5_000_000} if "huge" in text else {"text": "x" * 60 + "!"}
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.005)
            turns += 1

    working = asyncio.create_task(work())
    # On a busy machine, a second of processor time may take longer than the 20 seconds of a flow.
    workers = Workers(timeout=HANG_SECONDS)
    try:
        with pytest.raises(ExpressionError) as caught:
            await workers.evaluate(text, names, {})
        assert str(caught.value) == f"The expression {text!r} {said}"
        assert turns >= 20 or "longer" not in said
        assert await workers.evaluate("1 + 1", {}, {}) == 2
    finally:
        working.cancel()
        workers.end()


@pytest.mark.usefixtures("patient")
async def test_a_binding_that_takes_too_much_fails_its_node():
    bad = "$match(flow.input.message, /(x+)+$/)"
    said = f"The expression '{bad}' took longer than 1 s, or needed more than 256 MB."
    play = Play(flow([node("a", value={"text": f"{{{{{bad}}}}}"})]))
    await play.run({"message": "x" * 60 + "!"})
    assert play.lines("node:error", "flow:complete") == [f"node:error a {said}", "flow:complete failed"]


async def test_a_worker_is_kept_for_the_next_expression_and_replaced_if_somebody_ended_it():
    workers = Workers()
    try:
        assert [await pid_of(workers) for _ in range(3)] == [workers.alive[0].process.pid] * 3
        first = workers.alive[0].process
        first.kill()
        first.wait()
        assert await pid_of(workers) != first.pid
        assert len(workers.alive) == 1
    finally:
        workers.end()


async def test_no_more_workers_than_there_may_be_are_started():
    workers = Workers(size=2)
    try:
        answers = await asyncio.gather(*[workers.evaluate(f"{number} + 1", {}, {}) for number in range(9)])
        assert answers == [number + 1 for number in range(9)]
        assert len(workers.alive) == 2
    finally:
        workers.end()


async def test_an_expression_that_waits_too_long_for_its_turn_is_given_up():
    workers = Workers(size=1, timeout=0.3)
    slow = "$match('xxxxxxxxxxxxxxxxxxxxxxxxxxxx!', /(x+)+$/)"
    busy = [asyncio.create_task(workers.evaluate(slow, {}, {})) for _ in "ab"]
    for said in await asyncio.gather(*busy, return_exceptions=True):
        assert isinstance(said, ExpressionError)
        assert str(said) == f"The expression {slow!r} did not end within 0.3 s."
    workers.end()


async def test_a_worker_whose_expression_nobody_waits_for_any_more_is_ended():
    workers = Workers()
    asking = asyncio.create_task(workers.evaluate("$match('xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx!', /(x+)+$/)", {}, {}))
    await reaches(lambda: bool(workers.alive))
    process = workers.alive[0].process
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(process.wait, 60) == -9
    assert workers.alive == []


async def test_a_worker_ends_with_the_process_that_it_works_for():
    """The end of that process closes its pipes, and no other worker holds them open."""
    first, second = Worker(), Worker()
    assert first.ask(b'{"text": "1", "names": {}, "variables": {}}') == b'{"value":1}'
    first.let_go()
    assert first.process.wait(60) == 0
    second.end()


async def test_a_process_that_was_forked_begins_with_no_worker():
    workers = Workers()
    first = await pid_of(workers)
    process = workers.alive[0].process
    workers.forget()
    assert workers.alive == []
    assert await pid_of(workers) != first
    workers.end()
    # Only its parent may wait for it, which this process is in truth.
    process.returncode = None
    assert await asyncio.to_thread(process.wait, 60) == 0


async def test_expressions_are_evaluated_from_any_event_loop():
    def elsewhere() -> Any:
        return asyncio.run(Expression("1 + 1").evaluate(Scope({})))

    assert await asyncio.gather(asyncio.to_thread(elsewhere), asyncio.to_thread(elsewhere)) == [2, 2]
    assert await Expression("2 + 2").evaluate(Scope({})) == 4
    assert len(WORKERS.alive) <= 4


async def pid_of(workers: Workers) -> int:
    """The worker that answers the next question."""
    assert await workers.evaluate("1", {}, {}) == 1
    return workers.alive[0].process.pid
