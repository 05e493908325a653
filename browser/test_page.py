"""The page on the real server in a real Chromium."""

import gzip
from pathlib import Path
from typing import Final

import httpx
import pytest

from chromium import HERE, Chromium, Tab
from page_agent import ATTACKS, agent
from page_steps import ANSWERED, BOX, LAST, PHONE, STATUS, WIDE, ask, button, chat_of, kept, release, say
from support.hang import HANG_SECONDS
from support.loopback import message, serving
from usechat import create_app
from usechat.server.auth import BearerTokens
from usechat.server.page import BUILT
from wire import wire

AXE: Final = (HERE.parent / "web" / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
FAULTS: Final = """
axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) =>
  violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`))
"""
MOST_BYTES: Final = 400_000


def test_a_chat_is_in_the_address_and_in_the_list_until_it_is_deleted(tab: Tab, url: str) -> None:
    assert ask(tab, "Good morning") == "You said: Good morning"
    assert tab.wait_for('role=log >> role=article[name="You"]') == "Good morning"
    tab.wait_for('role=link[name="Good morning"]')
    first = chat_of(tab)

    tab.click(button("New chat"))
    ask(tab, "Good night")
    assert chat_of(tab) != first
    tab.click('role=link[name="Good morning"]')
    assert tab.wait_for(LAST) == "You said: Good morning"
    assert chat_of(tab) == first

    tab.click(f'li:has-text("Good morning") >> {button("Delete")}')
    tab.click(button("Really delete"))
    tab.wait_for_hidden('role=link[name="Good morning"]')
    assert kept(url, first) == []
    assert chat_of(tab) != first


def test_a_chat_that_could_not_be_deleted_stays_and_the_page_says_why(chromium: Chromium, url: str) -> None:
    with wire(url) as (address, _):
        tab = chromium.open(address, **WIDE)
        ask(tab, "Keep this")
        tab.wait_for('role=link[name="Keep this"]')
    tab.click(f".entry.current >> {button('Delete')}")
    tab.click(button("Really delete"))
    assert tab.wait_for("role=alert") == "The server could not be reached."
    tab.wait_for('role=link[name="Keep this"]')
    assert [problem for problem in tab.look().problems if "Failed to load resource" not in problem] == []
    tab.close()


def test_older_chats_are_listed_when_asked_for(chromium: Chromium) -> None:
    with serving(create_app(agent, page=True, lists_all=True)) as url, httpx.Client(timeout=HANG_SECONDS) as client:
        for number in range(55):
            client.post(f"{url}/api/chat", json=message(f"Chat {number}", f"chat-{number}"))
        with chromium.opened(url, **WIDE) as tab:
            tab.wait_for('role=link[name="Chat 54"]')
            tab.wait_for_hidden('role=link[name="Chat 0"]')
            tab.click(button("Older chats"))
            tab.wait_for('role=link[name="Chat 0"]')
            tab.wait_for_hidden(button("Older chats"))
            assert tab.run("document.querySelectorAll('nav a').length") == 55


def test_all_parts_are_shown(tab: Tab) -> None:
    ask(tab, "markdown")
    assert tab.wait_for(f"{LAST} >> role=heading") == "Tides"
    assert tab.wait_for(f"{LAST} >> role=row >> nth=1").split() == ["Brest", "7.1", "m", "1.2", "m"]
    tab.click(button("Thoughts"))
    tab.wait_for("text=The moon pulls at the sea")

    shown = ask(tab, "tools")
    assert shown.splitlines()[:3] == ["tide", "Brest, today", "Done"]
    assert "The harbour does not answer." in shown

    shown = ask(tab, "parts")
    told = ("Harbour: running", "pilot", "1 of 3", "Wrote log.md", "exit code 0", "3 results", "Asks navigator")
    assert [text for text in told if text not in shown] == []
    assert "1,234 tokens in · 56 out · $0.0042" in shown
    assert tab.run("document.querySelector('article img').naturalWidth") == 320
    assert tab.run("getComputedStyle(document.querySelector('[dir=rtl]')).direction") == "rtl"
    tab.click(button("weather"))
    tab.wait_for("text=4 Bft")
    tab.click(button("The blue one"))
    tab.wait_for("text=You said: The blue one")


def test_the_input_of_a_tool_is_shown_as_it_arrives(tab: Tab, url: str) -> None:
    say(tab, "types input")
    tab.wait_for(f"{LAST} >> text=Preparing")
    assert tab.wait_for('role=group[name="Input"]') == '{\n  "place": "Saint-Ma"\n}'
    release(url, "input")
    tab.wait_for_attached(ANSWERED)
    assert tab.wait_for(LAST).splitlines() == ["tide", "Saint-Malo", "Done"]


def test_stop_stops_the_agent(tab: Tab, url: str) -> None:
    say(tab, "long")
    tab.wait_for("text=It begins 0 1 2")
    tab.click(button("Stop"))
    tab.wait_for_attached(STATUS.format("The answer was stopped."))
    tab.wait_for(button("Send"))
    chat = chat_of(tab)
    tab.wait_for_request(f"POST {url}/api/chat/{chat}/stop")
    with httpx.stream("GET", f"{url}/api/chat/{chat}/stream", timeout=HANG_SECONDS) as turn:
        assert turn.status_code == 204
    assert kept(url, chat)[-1]["parts"][-1]["text"].startswith("It begins 0 1 2")


def test_an_answer_that_is_stopped_after_a_reload_stays(tab: Tab, url: str) -> None:
    say(tab, "long")
    tab.wait_for("text=It begins 0 1 2")
    tab.reload()
    tab.wait_for("text=It begins 0 1 2")
    tab.click(button("Stop"))
    tab.wait_for_request(f"POST {url}/api/chat/{chat_of(tab)}/stop")
    tab.wait_for(button("Send"))
    assert tab.wait_for(LAST).startswith("It begins 0 1 2")
    assert tab.run("document.querySelectorAll('article').length") == 2


def test_an_answer_goes_on_while_another_chat_is_looked_at(tab: Tab, url: str) -> None:
    say(tab, "waits elsewhere")
    tab.wait_for("text=It begins,")
    tab.click(button("New chat"))
    assert ask(tab, "Meanwhile") == "You said: Meanwhile"
    tab.run("history.back()")
    tab.wait_for("text=It begins,")
    tab.wait_for(button("Stop"))
    release(url, "elsewhere")
    tab.wait_for("text=It begins, and it ends.")
    tab.wait_for(button("Send"))
    assert tab.run("document.querySelectorAll('article').length") == 2


def test_a_page_that_is_loaded_again_reads_on(tab: Tab, url: str) -> None:
    say(tab, "waits reload")
    tab.wait_for("text=It begins,")
    tab.reload()
    tab.wait_for("text=It begins,")
    tab.wait_for(button("Stop"))
    release(url, "reload")
    tab.wait_for("text=It begins, and it ends.")
    tab.wait_for(button("Send"))
    assert tab.wait_for(LAST) == "It begins, and it ends."
    assert tab.run("document.querySelectorAll('article').length") == 2


def test_a_lost_connection_is_not_seen(chromium: Chromium, url: str) -> None:
    with wire(url) as (address, connection), chromium.opened(address, **WIDE) as tab:
        tab.click(button("Inspector"))
        connection.cut_at(b'"delta":"9 "')
        say(tab, "slowly")
        tab.wait_for_attached(ANSWERED)
        assert tab.wait_for(LAST).split() == [str(number) for number in range(50)]
        # What came before and after is one turn.
        tab.wait_for('role=region[name="Inspector"] >> text="accepted"')
        assert tab.wait_for('dl:has-text("Connections") >> dd >> nth=-1') == "2"
        assert tab.run("document.querySelector('select[aria-label=Turn]').length") == 1
        assert [problem for problem in tab.look().problems if "net::ERR_" not in problem] == []


def test_an_answer_whose_connection_stays_lost_is_read_on_and_not_asked_for_again(chromium: Chromium, url: str) -> None:
    with wire(url) as (address, connection), chromium.opened(address, **WIDE) as tab:
        say(tab, "waits lost")
        tab.wait_for("text=It begins,")
        connection.refuses = True
        connection.cut()
        tab.wait_for("role=alert")
        connection.refuses = False
        tab.click(button("Retry"))
        tab.wait_for_hidden("role=alert")
        release(url, "lost")
        tab.wait_for("text=It begins, and it ends.")
        asked = [path for method, path, _ in tab.look().requests if method == "POST" and path.endswith("/api/chat")]
        assert len(asked) == 1


def test_a_second_tab_shows_the_same(tab: Tab, chromium: Chromium, url: str) -> None:
    say(tab, "waits second")
    tab.wait_for("text=It begins,")
    with chromium.opened(tab.run("location.href"), beside=tab) as second:
        second.wait_for("text=It begins,")
        release(url, "second")
        tab.wait_for("text=It begins, and it ends.")
        second.wait_for("text=It begins, and it ends.")
        second.wait_for(button("Send"))

        # It was there before, too.
        assert ask(tab, "Hello, both") == "You said: Hello, both"
        second.wait_for("text=You said: Hello, both")
        assert second.look().problems == []


def test_a_call_is_approved_or_denied(tab: Tab) -> None:
    say(tab, "approve this")
    tab.wait_for_attached(STATUS.format("The assistant asks for your approval."))
    tab.click(button("Approve"))
    tab.wait_for("text=It is deleted.")
    assert tab.run("document.querySelectorAll('article').length") == 2

    tab.wait_for(button("Send"))
    say(tab, "approve that")
    tab.fill('role=textbox[name="Reason"]', "too early")
    tab.click(button("Deny"))
    tab.wait_for("text=I leave it. You said: too early.")
    tab.wait_for_hidden(button("Deny"))


def test_the_browser_answers_a_tool(tab: Tab) -> None:
    say(tab, "browser please")
    tab.fill('role=textbox[name="Output"]', '{"place": "Brest"}')
    tab.click(button("Submit"))
    tab.wait_for("text=The browser says {'place': 'Brest'}.")
    assert tab.run("document.querySelectorAll('article').length") == 2


def test_an_error_can_be_tried_again(tab: Tab) -> None:
    say(tab, "fails once")
    assert tab.wait_for("role=alert >> span") == "The agent ran aground."
    tab.click(button("Retry"))
    tab.wait_for("text=I try. Now it works.")
    tab.wait_for_hidden("role=alert")
    assert tab.run("document.querySelectorAll('article').length") == 2


def test_a_message_is_edited_and_an_answer_written_anew(tab: Tab, url: str) -> None:
    ask(tab, "The first")
    tab.click(button("Edit"))
    tab.fill('role=textbox[name="Your words"]', "The second")
    tab.click(button("Save"))
    tab.wait_for("text=You said: The second")
    tab.wait_for(button("Regenerate"))
    tab.click(f"{LAST} >> {button('Copy')}")
    tab.wait_for_attached(STATUS.format("Copied"))
    assert tab.run("navigator.clipboard.readText()") == "You said: The second "
    before = kept(url, chat_of(tab))
    tab.click(button("Regenerate"))
    tab.wait_for_attached(STATUS.format("The assistant has answered."))
    assert [part["parts"][-1]["text"].strip() for part in before] == ["The second", "You said: The second"]
    assert tab.run("document.querySelectorAll('article').length") == 2


def test_files_are_sent(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "tides.csv"
    file.write_text("06:12,7.1", "utf-8")
    tab.attach("input[type=file]", file)
    tab.wait_for("text=tides.csv")
    assert ask(tab, "files") == "text/csv: tides.csv"


def test_a_file_that_is_dropped_is_attached_and_does_not_replace_the_page(tab: Tab) -> None:
    tab.wait_for(BOX)
    assert tab.drop(".transcript", "boat.txt", "A boat") is False
    tab.wait_for('role=list[name="Attached files"] >> text=boat.txt')
    assert ask(tab, "files") == "text/plain: boat.txt"


def test_no_text_of_an_agent_runs(tab: Tab, url: str) -> None:
    ask(tab, "attack")
    assert tab.run("document.querySelectorAll('article').length") == 2
    tab.run("document.querySelectorAll('article [aria-expanded=false]').forEach((head) => head.click())")
    tab.wait_for_attached(f"{LAST} >> [aria-expanded=true] >> nth={3 * len(ATTACKS) - 1}")
    # Nothing is followed elsewhere; what is clicked stays here.
    tab.run("document.querySelectorAll('article a').forEach((link) => { link.target = ''; })")
    links: list[str] = tab.run("[...document.querySelectorAll('article a')].map((link) => link.protocol)")
    assert set(links) <= {"https:", "http:"}
    elements = (
        "script, iframe, style, base, object, embed, form[action], svg:not(.usechat-icon), math, [onerror], [onload]"
    )
    assert tab.run(f"document.querySelectorAll('article :is({elements})').length") == 0
    assert tab.run("window.hacked") is None
    assert {address.partition("?")[0].startswith(url) for _, address, _ in tab.look().requests} == {True}


def test_light_and_dark_wide_and_narrow_it_is_accessible(tab: Tab) -> None:
    tab.run(AXE)
    ask(tab, "Good morning")
    assert tab.run(FAULTS) == []
    for text in ("parts", "tools", "markdown"):
        ask(tab, text)
    say(tab, "approve")
    tab.wait_for(button("Approve"))
    for scheme, color in (("dark", "rgb(22, 22, 20)"), ("light", "rgb(250, 249, 247)")):
        for width in (390, 1440):
            tab.look_like(scheme, width)
            assert tab.run("getComputedStyle(document.body).backgroundColor") == color
            assert tab.run("document.documentElement.scrollWidth") == width
            tab.screenshot(f"chat-{scheme}-{width}")
            # Where there is room for both, they are looked at together.
            assert width == 1440 or tab.run(FAULTS) == []
            tab.click(button("Inspector"))
            tab.wait_for('role=region[name="Inspector"] >> text="accepted"')
            assert tab.run(FAULTS) == []
            tab.screenshot(f"inspector-{scheme}-{width}")
            tab.click(button("Close"))


def test_on_a_phone_the_list_opens_over_the_chat(chromium: Chromium, url: str) -> None:
    with chromium.opened(url, **PHONE) as tab:
        ask(tab, "From my phone")
        tab.wait_for_hidden(button("New chat"))
        tab.click(button("List of chats"))
        tab.click('role=link[name="From my phone"]')
        tab.wait_for_hidden(button("New chat"))
        assert tab.look().problems == []


def test_on_a_phone_no_word_is_too_long(chromium: Chromium, url: str) -> None:
    beyond = (
        "[...document.querySelectorAll('.transcript *')].filter((shown) => shown.getBoundingClientRect().right > 390)"
    )
    with chromium.opened(url, **PHONE) as tab:
        say(tab, "wide")
        tab.wait_for("role=alert")
        # What has a scroll bar of its own may be wider.
        assert (
            tab.run(f"{beyond}.filter((shown) => !shown.closest('pre, .table')).map((shown) => shown.outerHTML)") == []
        )
        tab.screenshot("wide-390")
        assert tab.look().problems == []


def test_the_keyboard_is_enough(tab: Tab) -> None:
    tab.wait_for(BOX)
    assert tab.run("document.activeElement.ariaLabel") == "Message"
    say(tab, "approve by keys")
    tab.wait_for(button("Approve"))
    names: list[str] = []
    while (name := tab.run("document.activeElement.ariaLabel || document.activeElement.innerText")) != "Approve":
        names.append(name)
        assert len(names) < 20, names
        tab.press(":focus", "Shift+Tab")
    tab.press(":focus", "Enter")
    tab.wait_for("text=It is deleted.")


def test_escape_closes_what_lies_over_the_chat_and_gives_the_keyboard_back(tab: Tab) -> None:
    focused = "document.activeElement.ariaLabel || document.activeElement.innerText"
    tab.look_like("light", 390)
    tab.click(button("Inspector"))
    tab.wait_for('role=region[name="Inspector"]')
    assert tab.run(focused) == "Close"
    tab.press(":focus", "Escape")
    tab.wait_for_hidden('role=region[name="Inspector"]')
    assert tab.run(focused) == "Inspector"
    tab.click(button("List of chats"))
    tab.wait_for(button("New chat"))
    tab.press(":focus", "Escape")
    tab.wait_for_hidden(button("New chat"))
    assert tab.run(focused) == "List of chats"
    tab.look_like("light", 1440)


def test_what_cannot_be_loaded_can_be_tried_again(tab: Tab, url: str) -> None:
    ask(tab, "Good morning")
    tab.run("window.kept = window.fetch; window.fetch = () => Promise.reject(new TypeError('Load failed'))")
    tab.click(button("New chat"))
    assert tab.wait_for("role=alert >> span") == "The server could not be reached."
    tab.run("window.fetch = window.kept")
    tab.click(button("Retry"))
    assert ask(tab, "Good night") == "You said: Good night"


def test_what_could_not_be_sent_can_be_sent_again(tab: Tab) -> None:
    tab.wait_for(BOX)
    tab.run("window.kept = window.fetch; window.fetch = () => Promise.reject(new TypeError('Load failed'))")
    say(tab, "Good morning")
    assert tab.wait_for("role=alert >> span") == "The server could not be reached."
    tab.run("window.fetch = window.kept")
    tab.click(button("Retry"))
    assert tab.wait_for(f"{LAST} >> text=You said: Good morning")
    assert tab.run("document.querySelectorAll('article').length") == 2


def test_a_token_is_asked_for_and_kept_for_the_tab(chromium: Chromium) -> None:
    app = create_app(agent, page=True, authenticate=BearerTokens({"sesame": "ada"}))
    with serving(app) as url, chromium.opened(url) as tab:
        tab.fill('role=textbox[name="Token"]', "wrong")
        tab.click(button("Continue"))
        tab.wait_for("text=The server did not take that token.")
        tab.fill('role=textbox[name="Token"]', "sesame")
        tab.press('role=textbox[name="Token"]', "Enter")
        assert ask(tab, "Open") == "You said: Open"
        tab.reload()
        assert tab.wait_for(LAST) == "You said: Open"
        assert tab.run("localStorage.length") == 0
        assert tab.look().problems == []


def test_the_page_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    size = sum(len(gzip.compress(file.read_bytes())) for file in BUILT.rglob("*") if file.is_file())
    with capsys.disabled():
        print(f"\nThe page: {size:,} bytes gzipped.")  # noqa: T201
    assert size < MOST_BYTES
