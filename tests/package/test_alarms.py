"""Alarms: each calls back once, in the order of their times, and a cancelled one never."""

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fast_loop import run_jumping
from usechat.alarms import Alarm, alarm_at


@given(st.lists(st.tuples(st.integers(0, 50), st.one_of(st.none(), st.integers(0, 50))), max_size=200))
def test_alarms_call_back_at_their_times_unless_they_were_cancelled_before(plan: list[tuple[int, int | None]]):
    """Each has a time at which it is due, and perhaps one at which it is cancelled."""

    async def play() -> list[tuple[float, int]]:
        loop = asyncio.get_running_loop()
        rang: list[tuple[float, int]] = []
        for number, (due, cancelled) in enumerate(plan):
            alarm = alarm_at(loop, float(due), lambda number=number: rang.append((loop.time(), number)))
            if cancelled is not None:
                # A moment before or after, so that nothing depends on which of two timers is first.
                loop.call_at(cancelled - 0.5, alarm.cancel)
        await asyncio.sleep(60)
        return rang

    rang = run_jumping(play())
    kept = [(float(due), number) for number, (due, off) in enumerate(plan) if off is None or off > due]
    assert sorted(rang) == sorted(kept)
    assert [at for at, _ in rang] == sorted(at for at, _ in rang)


def test_an_alarm_that_raises_leaves_the_others_alone():
    async def play() -> tuple[list[str], list[str]]:
        loop = asyncio.get_running_loop()
        rang, raised = list[str](), list[str]()
        loop.set_exception_handler(lambda _, context: raised.append(str(context["exception"])))
        alarm_at(loop, 1.0, lambda: list[str]().remove("nothing"))
        alarm_at(loop, 1.0, lambda: rang.append("same time"))
        alarm_at(loop, 2.0, lambda: rang.append("later"))
        await asyncio.sleep(3)
        return rang, raised

    assert run_jumping(play()) == (["same time", "later"], ["list.remove(x): x not in list"])


def test_many_alarms_have_one_timer_and_none_when_all_are_cancelled(monkeypatch: pytest.MonkeyPatch):
    async def play() -> tuple[int, int, float]:
        loop = asyncio.get_running_loop()
        timers = list[asyncio.TimerHandle]()
        call_at = loop.call_at

        def count(when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
            timers.append(call_at(when, callback))
            return timers[-1]

        monkeypatch.setattr(loop, "call_at", count)
        alarms = [alarm_at(loop, 100.0 + number, lambda: None) for number in range(1_000)]
        at_first = sum(not timer.cancelled() for timer in timers)
        for alarm in alarms:
            alarm.cancel()
            alarm.cancel()
        return at_first, sum(not timer.cancelled() for timer in timers), loop.time()

    assert run_jumping(play()) == (1, 0, 0.0)


def test_a_loop_that_is_gone_leaves_no_alarms():
    loops = list[weakref.ref[asyncio.AbstractEventLoop]]()

    async def play() -> Alarm:
        loop = asyncio.get_running_loop()
        loops.append(weakref.ref(loop))
        return alarm_at(loop, loop.time() + 1_000, lambda: None)

    alarm = asyncio.run(play())
    assert loops[0]() is not None
    del alarm
    gc.collect()
    assert loops[0]() is None
