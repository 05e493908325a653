"""The page's inspector, and recordings of turns."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chromium import HERE, Chromium, Tab
from nginx import Nginx
from page_agent import agent
from page_steps import ANSWERED, BOX, LAST, STATUS, WIDE, ask, button, say
from support.hang import HANG_SECONDS
from support.loopback import free_port, serving
from usechat import create_app
from usechat.server.auth import BearerTokens
from usechat.server.page import PageAgent, page_routes
from usechat.testing import collect


def test_the_inspector_has_each_chunk_and_the_verdict(tab: Tab) -> None:
    tab.click(button("Inspector"))
    ask(tab, "Good morning")
    region = 'role=region[name="Inspector"]'
    assert tab.wait_for(f"{region} >> .verdict") == "accepted\nby ai 5.0.92+, 6.0.0+, 7.0.0+"
    assert tab.wait_for(f"{region} >> text=SSE")
    tab.click('role=option >> text="text-delta" >> nth=0')
    assert '"delta": "You' in tab.wait_for('role=group[name="JSON"]')
    assert tab.wait_for('role=group[name="Raw"]').splitlines()[-1].startswith('data: {"type":"text-delta"')
    assert '"text": "You said: Good morning "' in tab.wait_for('role=group[name="The part it made"]')
    tab.fill('role=searchbox[name="Filter"]', "finish-step")
    tab.wait_for_hidden('role=option >> text="text-delta"')
    tab.click(button("Close"))
    tab.wait_for_hidden(region)


def test_the_inspector_tells_a_websocket_from_server_sent_events(tab: Tab, tmp_path: Path) -> None:
    region = 'role=region[name="Inspector"]'
    tab.click(button("Inspector"))
    tab.click(button("WebSocket"))
    assert ask(tab, "Good morning") == "You said: Good morning"
    assert tab.wait_for(f"{region} >> header >> .badge") == "WebSocket"
    assert tab.wait_for(f"{region} >> .verdict").startswith("accepted")
    tab.click('role=option >> text="finish-step"')
    assert tab.wait_for('role=group[name="Raw"]').startswith('{"type":"chunk","requestId":')
    [request] = [
        json.loads(line) for line in tab.download(button("Recording"), tmp_path / "a").read_text().splitlines()
    ][:1]
    assert request["request"]["message"]["parts"] == [{"type": "text", "text": "Good morning"}]

    say(tab, "long")
    tab.wait_for("text=It begins 0 1 2")
    tab.click(button("Stop"))
    tab.wait_for_attached(STATUS.format("The answer was stopped."))
    tab.click(button("SSE"))
    ask(tab, "Good night")
    assert tab.wait_for(f"{region} >> header >> .badge") == "SSE"


async def broken_chat(_request: Request) -> Response:
    events = ['{"type":"start","messageId":"1"}', '{"type":"text-delta","id":"1","delta":"Hello"}', "[DONE]"]
    return Response("".join(f"data: {event}\n\n" for event in events), media_type="text/event-stream")


def test_a_turn_is_recorded_and_played_again(tab: Tab, tmp_path: Path) -> None:
    ask(tab, "Good morning")
    tab.click(button("Inspector"))
    file = tab.download(button("Recording"), tmp_path / "turn.jsonl")
    head, *lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert (head["usechat"], head["request"]["message"]["parts"][0]["text"]) == ("recording", "Good morning")
    assert [lines[0]["chunk"]["type"], lines[-1]["chunk"]["type"]] == ["start", "finish"]
    assert sorted(line["at"] for line in lines) == [line["at"] for line in lines]

    # A pause that nobody waits for.
    lines[-1]["at"] += 3_600_000
    tab.drop(".transcript", "turn.jsonl", "".join(json.dumps(line) + "\n" for line in [head, *lines]))
    tab.wait_for('role=group[name="Replay"]')
    tab.wait_for(f"{LAST} >> text=You said: Good morning")
    tab.wait_for(f'role=option >> text="{lines[-2]["chunk"]["type"]}"')
    tab.wait_for(button("Stop"))
    tab.click(button("Step"))
    tab.wait_for(button("Send"))
    assert tab.wait_for('role=region[name="Inspector"] >> .verdict').startswith("accepted")
    tab.click(button("End the replay"))
    tab.wait_for_hidden('role=group[name="Replay"]')


TOLD = '{"at": 1, "chunk": {"type": "start", "messageId": "1"}}\n{"at": 2, "chunk": {"type": "finish"}}'


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"usechat": "recording", "request": null, "continues": 5}\n' + TOLD,
        '{"usechat": "recording", "request": null, "continues": {"id": "1", "role": "assistant"}}\n' + TOLD,
        '{"usechat": "recording", "request": {"messages": 5}}\n' + TOLD,
        '{"usechat": "recording", "request": {"message": {"id": "1", "role": "user", "parts": [null]}}}\n' + TOLD,
        '{"usechat": "recording", "request": {"message": {}}}\n' + TOLD,
        '{"usechat": "recording", "request": 5}\n' + TOLD,
        '{"usechat": "recording"}\n{"at": 1}',
        '{"usechat": "recording"}\n{"at": "soon", "chunk": {}}',
    ],
    ids=range(9),
)
def test_a_file_that_is_no_recording_is_refused_and_the_chat_stays(tab: Tab, content: str) -> None:
    tab.drop(".transcript", "other.jsonl", content)
    assert tab.wait_for("role=alert") == "This file is not a recording of a turn."
    tab.wait_for(BOX)


def test_a_recording_needs_neither_its_request_nor_a_message_before(tab: Tab) -> None:
    tab.drop(".transcript", "bare.jsonl", '{"usechat": "recording"}\n' + TOLD)
    tab.wait_for('role=group[name="Replay"]')
    tab.wait_for_attached(ANSWERED)


def test_what_cannot_be_drawn_leaves_the_rest_of_the_page(chromium: Chromium, url: str) -> None:
    before = {"id": "1", "role": "assistant", "parts": [{"type": "file", "url": "/chart.png"}]}
    head = json.dumps({"usechat": "recording", "request": None, "continues": before})
    with chromium.opened(url, **WIDE) as tab:
        tab.drop(".transcript", "odd.jsonl", f"{head}\n{TOLD}")
        tab.wait_for("text=The page cannot show all of this message.")
        tab.wait_for('role=group[name="Replay"]')
        tab.wait_for(BOX)


def test_an_error_of_the_client_that_fills_pages_is_cut(tab: Tab) -> None:
    tab.drop(".transcript", "odd.jsonl", '{"usechat": "recording"}\n{"at": 1, "chunk": {"type": "nope"}}')
    told = tab.wait_for("role=alert >> span")
    assert told.startswith('Type validation failed: Value: {"type":"nope"}.')
    assert (len(told) <= 301, told[-1]) == (True, "…")


def test_what_is_copied_of_a_request_runs(chromium: Chromium, tmp_path: Path) -> None:
    port = free_port()
    app = create_app(agent, page=True, cors=[f"http://localhost:{port}"], authenticate=BearerTokens({"sesame": "ada"}))
    with serving(app) as url, chromium.opened(url, **WIDE) as tab:
        tab.fill('role=textbox[name="Token"]', "sesame")
        tab.press('role=textbox[name="Token"]', "Enter")
        text = r"""It's "said" \ for $HOME `ls` 潮"""
        ask(tab, text)
        tab.click(button("Inspector"))
        copied: dict[str, str] = {}
        for name in ("curl", "Python", "useChat"):
            tab.click(button(name))
            tab.wait_for_attached(f"{button(name)} >> text=Copied")
            copied[name] = tab.run("navigator.clipboard.readText()")
        environment = {**os.environ, "USECHAT_TOKEN": "sesame"}
        for command in (["bash", "-c", copied["curl"]], [sys.executable, "-c", copied["Python"]]):
            done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=HANG_SECONDS)
            said = [chunk["delta"] for chunk in collect(done.stdout) if chunk["type"] == "text-delta"]
            assert "".join(said).strip() == f"You said: {text}"

        root = Path(shutil.copytree(HERE / "app", tmp_path / "app"))
        (root / "node_modules").symlink_to(HERE / "node_modules", target_is_directory=True)
        code = copied["useChat"].replace('prompt("Token")', '"sesame"')
        (root / "src" / "App.tsx").write_text(code, encoding="utf-8")
        subprocess.run([HERE / "node_modules" / ".bin" / "tsc", "--project", root], check=True)
        chromium.serve(root, port)
        tab.goto(f"http://localhost:{port}")
        tab.click("button")
        tab.wait_for("output:text-is('ready')")
        assert tab.wait_for("p >> nth=1") == f"assistant: You said: {text}"


def test_the_inspector_says_why_a_stream_is_refused(chromium: Chromium) -> None:
    agents = [
        PageAgent(path=f"/{name.lower()}", name=name, prompts=("Hello",), keeps=False, lists=False)
        for name in ("First", "Broken")
    ]
    routes = [*page_routes(agents), Route("/broken", broken_chat, methods=["POST"])]
    with serving(Starlette(routes=routes)) as url, chromium.opened(url, **WIDE) as tab:
        tab.select('role=combobox[name="Agent"]', "Broken")
        tab.click(button("Inspector"))
        tab.click(f'role=group[name="Suggested prompts"] >> {button("Hello")}')
        tab.wait_for("role=alert")
        tab.wait_for('role=region[name="Inspector"] >> text="refused"')
        assert [line for line in tab.wait_for(".violation").splitlines() if line] == [
            "`text-delta` for the part '1', which is not open.",
            "Rule",
            "part-not-open",
            "Remedy",
            "Send the part's start first; `finish-step` closes all parts for older clients.",
            "Show the chunk",
        ]


def test_the_inspector_sees_that_something_buffers(chromium: Chromium, url: str) -> None:
    with closing(Nginx(int(url.rpartition(":")[2]))) as nginx:
        address = f"http://127.0.0.1:{nginx.hops['buffers'].port}"
        with chromium.opened(address, **WIDE) as tab:
            tab.click(button("Inspector"))
            ask(tab, "slowly")
            told = tab.wait_for('role=region[name="Inspector"] >> text=in one burst')
    assert re.fullmatch(r"\d\d chunks in one burst: something in between buffers\.", told)


def test_ten_thousand_chunks_are_played_again(tab: Tab, capsys: pytest.CaptureFixture[str]) -> None:
    begin = [{"type": "start", "messageId": "1"}, {"type": "start-step"}, {"type": "text-start", "id": "1"}]
    words = [
        {"type": "text-delta", "id": "1", "delta": f"word{number} " if number % 40 else "\n\n"}
        for number in range(1, 10_001)
    ]
    end = [{"type": "text-end", "id": "1"}, {"type": "finish-step"}, {"type": "finish"}]
    head = {"usechat": "recording", "request": None, "continues": None}
    lines = [{"at": number / 10, "chunk": chunk} for number, chunk in enumerate([*begin, *words, *end])]
    tab.wait_for(BOX)
    tab.run("""
    window.tasks = [];
    new PerformanceObserver((list) => tasks.push(...list.getEntries().map(({ duration }) => duration)))
      .observe({ type: "longtask", buffered: true })
    """)
    tab.drop(".transcript", "long.jsonl", "\n".join(map(json.dumps, [head, *lines])))
    tab.wait_for(f"{LAST} >> text=word9999")
    tab.wait_for(button("Send"))
    tab.wait_for('role=region[name="Inspector"] >> text="accepted"')
    assert tab.wait_for('dl:has-text("Chunks") >> dd >> nth=3') == "10,006"
    longest = max(tab.run("tasks"), default=0)
    with capsys.disabled():
        print(f"\nThe page: the longest task of an answer of 10,000 chunks took {longest:.0f} ms.")  # noqa: T201
