"""What only LlamaIndex has: questions that a message answers, handoffs, ReAct, and workflows that are no agents."""

import json
import os
import re
import subprocess
from typing import Any

import pytest

from environments import HERE, Environment, chosen
from pages import Message
from support.hang import HANG_SECONDS
from talks import STEP, Served, Talk, calls, shown, text


@pytest.fixture(
    scope="module", params=[one for one in chosen() if one.name == "llama-index"], ids=lambda one: one.version
)
def environment(request: pytest.FixtureRequest) -> Environment:
    return request.param


def question(amount: int) -> Message:
    asked = {"id": "input-1", "prefix": f"Pay {amount}?", "amount": amount}
    return {"type": "data-input-required", "id": "input-1", "data": asked}


def paid(amount: int, output: str) -> Message:
    return {
        "type": "tool-pay",
        "toolCallId": "call_1",
        "state": "output-available",
        "input": {"amount": amount},
        "output": output,
    }


def test_the_next_message_answers_a_question_also_in_another_process(talk: Talk, other_server: Served) -> None:
    talk.say("hello")
    before = other_server.effects()
    view = talk.say("pay 5")
    waits = paid(5, "This call waits for your answer.")
    assert [part for part in shown(view) if part != STEP] == [text("May I?"), waits, question(5)]
    assert other_server.effects() == before

    view = talk.page(server=other_server, messages=talk.kept()).send("yes").settle()
    assert calls(view) == [paid(5, "paid 5")]
    assert other_server.effects() == [*before, "paid 5"]
    # The run has the messages from before it.
    assert talk.heard() == [
        ("user", "hello"),
        ("assistant", "You said: hello"),
        ("user", "pay 5"),
        ("assistant", "May I?"),
        ("tool", "paid 5"),
    ]

    talk.page(server=other_server, messages=talk.kept()).send("thanks").settle()
    assert talk.heard()[2:] == [
        ("user", "pay 5"),
        ("assistant", "May I?"),
        ("user", "yes"),
        ("assistant", ""),
        ("tool", "paid 5"),
        ("assistant", "The tool said: paid 5"),
        ("user", "thanks"),
    ]


def test_an_answer_that_is_regenerated_asks_again_or_answers_again(talk: Talk) -> None:
    talk.say("pay 6")
    view = talk.page(messages=talk.kept()).regenerate().settle()
    assert [part for part in shown(view) if part != STEP][-1] == question(6)
    talk.page(messages=talk.kept()).send("no").settle()
    view = talk.page(messages=talk.kept()).regenerate().settle()
    assert calls(view) == [paid(6, "The user said: no")]


def test_a_call_beside_one_that_waits_runs_once(talk: Talk) -> None:
    view = talk.say("pay 7 weather Oslo")
    assert [(part["type"], part["output"]) for part in calls(view)] == [
        ("tool-pay", "This call waits for your answer."),
        ("tool-get_weather", {"city": "Oslo", "celsius": 21}),
    ]
    view = talk.page(messages=talk.kept()).send("yes").settle()
    assert calls(view) == [paid(7, "paid 7")]


def test_a_regenerated_handoff_begins_with_the_agent_that_had_the_conversation(talk: Talk) -> None:
    talk.say("handoff")
    talk.page(messages=talk.kept()).regenerate().settle()
    offered = [{tool["function"]["name"] for tool in asked.body["tools"]} for asked in talk.asked]
    assert ["pay" in names for names in offered] == [True, False, True, False]


# A conversation with each workflow in one process: what it is asked, and the parts of the answers.
WORKFLOWS = """
import asyncio, httpx, json
from llama_index.core.workflow import (
    Context, Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
)
from usechat import create_app

class ProgressEvent(Event):
    percent: int

class Pages(StopEvent):
    pages: int

class NameAsked(InputRequiredEvent):
    prefix: str

class NameGiven(HumanResponseEvent):
    response: str

class Count(Workflow):
    @step
    async def count(self, ctx: Context, ev: StartEvent) -> Pages:
        ctx.write_event_to_stream(ProgressEvent(percent=50))
        return Pages(pages=len(ev.chat_history))

class Greet(Workflow):
    @step
    async def ask(self, ev: StartEvent) -> NameAsked:
        return NameAsked(prefix=f"{ev.user_msg}, and who are you?")

    @step
    async def greet(self, ev: NameGiven) -> StopEvent:
        return StopEvent(result=f"Hello, {ev.response}")

class Asked(Event):
    name: str

class Given(Event):
    text: str

class Both(Workflow):
    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Asked | None:
        ctx.send_event(Asked(name="first"))
        ctx.send_event(Asked(name="last"))

    @step
    async def ask(self, ctx: Context, ev: Asked) -> Given:
        asked, needs = NameAsked(prefix=ev.name), {"prefix": ev.name}
        given = await ctx.wait_for_event(NameGiven, waiter_event=asked, requirements=needs)
        return Given(text=f"{ev.name} {given.response}")

    @step
    async def end(self, ctx: Context, ev: Given) -> StopEvent | None:
        both = ctx.collect_events(ev, [Given, Given])
        return both and StopEvent(result=", ".join(sorted(given.text for given in both)))

class Fail(Workflow):
    @step
    async def fail(self, ev: StartEvent) -> StopEvent:
        raise ValueError("secret")

async def talk(workflow, *words):
    transport = httpx.ASGITransport(create_app(workflow))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        for number, text in enumerate(words):
            said = {"id": f"u{number}", "role": "user", "parts": [{"type": "text", "text": text}]}
            await http.post("/api/chat", json={"id": "c", "message": said})
        kept = (await http.get("/api/chat/c/messages")).json()
    parts = [part for message in kept if message["role"] == "assistant" for part in message["parts"]]
    return [part.get("data") or part.get("text") for part in parts if part["type"] != "step-start"]

async def main():
    print(json.dumps([
        await talk(Count(), "Hi", "Hi again"),
        await talk(Greet(), "Hi", "Ann"),
        await talk(Both(), "Hi", "Ann", "Lee"),
        await talk(Fail(), "Hi"),
    ]))

asyncio.run(main())
"""


def asked(number: int, words: str) -> Message:
    return {"id": f"input-{number}", "prefix": words}


def test_any_workflow_is_served(environment: Environment) -> None:
    assert printed_by(environment, WORKFLOWS) == [
        [{"percent": 50}, {"pages": 0}, {"percent": 50}, {"pages": 1}],
        [{"id": "input-1", "prefix": "Hi, and who are you?"}, "Hello, Ann"],
        [*map(asked, (1, 2, 1), ("first", "last", "last")), "first Ann, last Lee"],
        [],
    ]


# Talks to the app of the guide, and prints what the page reads.
CLIENT = """
import asyncio, httpx, json

async def main():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http:
        for number, text in enumerate(("Hi", "Ann")):
            said = {"id": f"u{number}", "role": "user", "parts": [{"type": "text", "text": text}]}
            await http.post("/api/chat", json={"id": "c", "message": said})
        kept = (await http.get("/api/chat/c/messages")).json()
    parts = [part for message in kept if message["role"] == "assistant" for part in message["parts"]]
    print(json.dumps([[part["type"], part.get("data") or part.get("text")] for part in parts]))

asyncio.run(main())
"""


def test_the_programs_of_the_guide_run(environment: Environment) -> None:
    guide = (HERE.parent / "docs" / "guides" / "llama-index.md").read_text(encoding="utf-8")
    programs: list[str] = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    [example] = [program for program in programs if program.startswith("# app.py\n")]
    asked = {"id": "input-1", "prefix": "You said Hi. What is your name?"}
    shown = [part for part in printed_by(environment, example + CLIENT) if part[0] != "step-start"]
    assert shown == [
        ["data-progress", {"percent": 50}],
        ["data-input-required", asked],
        ["text", "Hello, Ann!"],
    ]
    for program in programs:
        assert printed_by(environment, f"{program}\nprint('true')") is True


def printed_by(environment: Environment, program: str) -> Any:
    path = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        [environment.python, "-c", program], env=path, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
