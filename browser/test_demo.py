"""Each suggested prompt of the demo, in a real Chromium: what it promises is on the page."""

from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from chromium import Chromium, Tab
from support.hang import HANG_SECONDS
from support.loopback import serving
from support.openai_server import Model, words
from test_page import AXE, FAULTS
from usechat.demo.app import Demo, make_demo
from usechat.server.page import PagePrompt

ANSWERED: Final = "The assistant has answered."
LAST: Final = 'role=article[name="Assistant"] >> nth=-1'
WIDE: Final[dict[str, Any]] = {"viewport": {"width": 1440, "height": 900}}
FOCUSED: Final = "document.activeElement.getAttribute('aria-label')"
# The words on the page that a prompt leads to, in their order.
SHOWN: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "Python generator": {
        "Explain the tides": ("Thoughts", "Why the sea rises", "Saint-Malo", "next_high_water", "1,204 tokens in"),
        "High water in Brest?": ("tide_table", "Done", "06:12"),
        "Book a boat": ("book_boat", "Failed", "The harbour does not answer.", "No boat could be booked"),
        "Cite your sources": ("Sources", "Tides in Brest", "tides.example", "Nautical almanac", "almanac.pdf"),
        "Draw the harbour": ("This is the harbour",),
    },
    "Open Harness flow": {
        "Plan a day in Lisbon": (
            "day-trip: complete",
            "planner",
            "writer",
            "A day in Lisbon",
            "It is clear with 24 °C.",
        ),
        "Plan a day in Atlantis": ("weather", "failed", "The weather is not known.", "A day in Atlantis"),
    },
    "Agent Ops session": {
        "Fix the failing test": (
            "bash",
            "Failed",
            "1 failed",
            "edit",
            "Done",
            "bash",
            "Done",
            "All 14 tests pass now.",
        ),
    },
    "Deep agent": {
        "Write a report on the tides": (
            "3 of 3",
            "task",
            "Asks researcher: Find the heights",
            "researcher is done",
            "write_file",
            "Wrote /report.md",
            "The report is in /report.md",
            "1,600 tokens in",
        ),
    },
}
# What nodes show that run at the same time, whichever is the first.
AT_ONCE: Final = {
    "Plan a day in Lisbon": (
        ("planner → weather", "get_weather", "weather → writer", "A day in Lisbon"),
        ("planner → sights", "find_sights", "sights → writer", "A day in Lisbon"),
    ),
}
# Those that have a test of their own.
OTHERS: Final = {
    "Python generator": {"Delete the old log", "Where am I?", "Recite the tide table", "Ask the closed harbour"},
    "Open Harness flow": {"Plan a day on the moon"},
    "Agent Ops session": {"Deploy the app", "Watch the log", "Ask an overloaded model"},
    "Deep agent": {"Publish the report"},
}


def button(name: str) -> str:
    return f'role=button[name="{name}"]'


def prompt(text: str) -> str:
    return f'role=group[name="Suggested prompts"] >> button:has(span:text-is("{text}"))'


def wait_for_status(tab: Tab, sentence: str) -> None:
    tab.wait_for_attached(f'role=status >> text="{sentence}"')


@pytest.fixture(scope="module")
def demo() -> Demo:
    return make_demo(pace=0.002)


@pytest.fixture(scope="module")
def url(demo: Demo) -> Iterator[str]:
    with serving(demo.app) as url:
        yield url


@pytest.fixture(scope="module")
def slow_url() -> Iterator[str]:
    """A demo whose long answers take longer than what hangs, so that they can be stopped on any machine."""
    with serving(make_demo(pace=0.1).app) as url:
        yield url


def begin(tab: Tab, agent: str, text: str) -> None:
    """Choose the agent and send one of its prompts."""
    tab.select('role=combobox[name="Agent"]', agent)
    tab.click(prompt(text))


def test_all_prompts_are_tested_here(demo: Demo) -> None:
    prompts = {agent.name: {text_of(prompt) for prompt in agent.prompts} for agent in demo.agents}
    assert prompts == {name: {*told, *OTHERS[name]} for name, told in SHOWN.items()}
    assert demo.missing == ()


def text_of(prompt: str | PagePrompt) -> str:
    return prompt if isinstance(prompt, str) else prompt.text


@pytest.mark.parametrize("agent", SHOWN)
def test_the_prompts_of_an_agent_show_what_they_promise(tab: Tab, agent: str) -> None:
    tab.select('role=combobox[name="Agent"]', agent)
    for text, told in SHOWN[agent].items():
        tab.click(button("New chat"))
        tab.click(prompt(text))
        wait_for_status(tab, ANSWERED)
        shown = tab.wait_for(LAST)
        for row in (told, *AT_ONCE.get(text, ())):
            place = 0
            for wanted in row:
                place = shown.find(wanted, place)
                assert place >= 0, f"{text}: {wanted!r} is not in its place in {shown!r}"
        if text == "Draw the harbour":
            assert tab.run("document.querySelector('article img').naturalWidth") == 640


@pytest.mark.parametrize(
    ("agent", "text", "approved", "denied"),
    [
        ("Python generator", "Delete the old log", "It is deleted.", "I keep the file. You said: too early."),
        ("Deep agent", "Publish the report", "The report is published.", "I keep it to myself, then."),
    ],
)
def test_a_call_is_approved_or_denied(tab: Tab, agent: str, text: str, approved: str, denied: str) -> None:
    begin(tab, agent, text)
    wait_for_status(tab, "The assistant asks for your approval.")
    tab.click(button("Approve"))
    tab.wait_for(f"{LAST} >> text={approved}")
    wait_for_status(tab, ANSWERED)

    # The prompts are still there.
    tab.click(prompt(text))
    tab.fill('role=textbox[name="Reason"]', "too early")
    tab.click(button("Deny"))
    tab.wait_for(f"{LAST} >> text={denied}")
    wait_for_status(tab, ANSWERED)
    assert tab.run("document.querySelectorAll('article').length") == 4


def test_the_keyboard_stays_in_the_chat_when_its_button_goes_away(tab: Tab) -> None:
    tab.press(prompt("Delete the old log"), "Enter")
    wait_for_status(tab, "The assistant asks for your approval.")
    assert tab.run(FOCUSED) == "Transcript"
    tab.press(button("Approve"), "Enter")
    tab.wait_for(f"{LAST} >> text=It is deleted.")
    wait_for_status(tab, ANSWERED)
    assert tab.run(FOCUSED) == "Transcript"


def test_the_browser_answers_a_tool(tab: Tab) -> None:
    begin(tab, "Python generator", "Where am I?")
    wait_for_status(tab, "The assistant waits for the output of a tool.")
    tab.fill('role=textbox[name="Output"]', "at sea")
    tab.click(button("Submit"))
    tab.wait_for(f"{LAST} >> text=The browser says: at sea.")
    wait_for_status(tab, ANSWERED)


def test_a_long_answer_goes_on_after_a_reload_and_can_be_stopped(tab: Tab, slow_url: str) -> None:
    tab.goto(slow_url)
    begin(tab, "Python generator", "Recite the tide table")
    tab.wait_for("text=Day 1.")
    tab.reload()
    tab.wait_for("text=Day 2.")
    assert tab.run("document.querySelectorAll('article').length") == 2
    tab.click(button("Stop"))
    wait_for_status(tab, "The answer was stopped.")
    chat = tab.run("new URLSearchParams(location.search).get('chat')")
    tab.wait_for_request(f"POST {slow_url}/api/generator/{chat}/stop")
    assert "Day 90." not in tab.wait_for(LAST)


def test_a_turn_of_a_session_is_stopped(tab: Tab, slow_url: str) -> None:
    tab.goto(slow_url)
    begin(tab, "Agent Ops session", "Watch the log")
    tab.wait_for("text=0003 GET /tides 200")
    tab.click(button("Stop"))
    wait_for_status(tab, "The answer was stopped.")
    # Its session is free for the next.
    tab.click(prompt("Ask an overloaded model"))
    tab.wait_for(f"{LAST} >> text=I begin to think")


def test_a_question_is_answered_where_it_was_asked(tab: Tab) -> None:
    begin(tab, "Agent Ops session", "Deploy the app")
    tab.click(button("staging"))
    tab.wait_for(f"{LAST} >> text=I deploy it to staging. It is up.")
    tab.wait_for(f"{LAST} >> text=Answered: staging")
    wait_for_status(tab, ANSWERED)
    assert tab.run("document.querySelectorAll('article').length") == 2


def test_an_error_is_shown_and_can_be_tried_again(tab: Tab) -> None:
    begin(tab, "Python generator", "Ask the closed harbour")
    assert tab.wait_for("role=alert >> span") == "The harbour is closed. Try again."
    wait_for_status(tab, "The answer failed.")
    tab.click(button("Retry"))
    tab.wait_for(f"{LAST} >> text=Now it is open.")
    tab.wait_for_hidden("role=alert")
    wait_for_status(tab, ANSWERED)


@pytest.mark.parametrize(
    ("agent", "text", "told", "error"),
    [
        ("Open Harness flow", "Plan a day on the moon", "Nobody sails to the moon.", "Something went wrong"),
        ("Agent Ops session", "Ask an overloaded model", "I begin to think", "The model is overloaded."),
    ],
)
def test_a_turn_that_fails_says_so(tab: Tab, agent: str, text: str, told: str, error: str) -> None:
    begin(tab, agent, text)
    assert tab.wait_for("role=alert >> span").startswith(error)
    assert told in tab.wait_for(LAST)
    wait_for_status(tab, "The answer failed.")


def test_the_prompts_are_accessible_on_a_phone(tab: Tab) -> None:
    tab.run(AXE)
    for scheme in ("dark", "light"):
        tab.look_like(scheme, 390)
        assert tab.run(FAULTS) == []
    # What stands above the prompts is seen first.
    assert tab.run("document.querySelector('.transcript').scrollTop") == 0
    tab.click(prompt("Cite your sources"))
    tab.wait_for(prompt("Draw the harbour"))
    assert tab.run("document.documentElement.scrollWidth") == 390
    assert tab.run(FAULTS) == []
    tab.look_like("light", 1440)


def test_chats_are_listed_by_agent(tab: Tab) -> None:
    begin(tab, "Open Harness flow", "Plan a day in Lisbon")
    tab.wait_for('role=link[name="Plan a day in Lisbon"]')
    tab.select('role=combobox[name="Agent"]', "Python generator")
    tab.wait_for_hidden('role=link[name="Plan a day in Lisbon"]')


def test_a_page_that_a_new_server_does_not_know_is_signed_in_again(chromium: Chromium, url: str) -> None:
    with chromium.opened(url, **WIDE) as tab:
        begin(tab, "Agent Ops session", "Fix the failing test")
        wait_for_status(tab, ANSWERED)
        tab.forget_cookies()
        tab.click(prompt("Fix the failing test"))
        tab.wait_for('role=article[name="You"] >> nth=1')
        tab.wait_for(f"{LAST} >> text=All 14 tests pass now.")
        seen = tab.look()
    assert [status for _, address, status in seen.requests if address.endswith("/chat")] == [200, 401, 200]
    assert seen.problems == ["Failed to load resource: the server responded with a status of 401 (Unauthorized)"]


def test_a_real_model_answers_where_there_is_one(chromium: Chromium) -> None:
    model = Model(words("The moon ", "pulls."))
    with serving(model.app) as upstream:
        demo = make_demo(pace=0, environ={"OPENAI_BASE_URL": f"{upstream}/v1", "OPENAI_MODEL": "tide-1"})
        with serving(demo.app) as url, chromium.opened(url, **WIDE) as tab:
            begin(tab, "OpenAI tide-1", "Why does the sea rise twice a day?")
            tab.wait_for(f"{LAST} >> text=The moon pulls.")
            assert tab.look().problems == []
    assert [(asked["model"], asked["messages"]) for asked in model.asked] == [
        ("tide-1", [{"role": "user", "content": "Why does the sea rise twice a day?"}])
    ]


def test_only_the_page_is_signed_in(url: str) -> None:
    posted = httpx.post(f"{url}/api/sessions/demo/chat", json={"id": "c", "messages": []}, timeout=HANG_SECONDS)
    assert (posted.status_code, httpx.get(f"{url}/api/generators", timeout=HANG_SECONDS).status_code) == (401, 401)
    cookie = httpx.get(url, timeout=HANG_SECONDS).headers["set-cookie"]
    assert cookie.partition("; ")[2] == "Path=/; HttpOnly; SameSite=Strict"
    assert httpx.get(url, headers={"host": "elsewhere.example"}, timeout=HANG_SECONDS).status_code == 400
