import signal
import sys
from pathlib import Path

import httpx
import pytest

from support.hang import HANG_SECONDS
from support.loopback import USECHAT, message, parts, read_until, running
from usechat.cli import main
from usechat.demo import deep_agent, flow, generator, session

BANNER = f"""\
The usechat demo is at {{url}}

  Python generator   {generator.PAGE.about}
  Open Harness flow  {flow.PAGE.about}
  Agent Ops session  {session.PAGE.about}
  Deep agent         {deep_agent.PAGE.about}

Chats are kept in memory. Only this computer can connect. Ctrl-C stops it.

"""


def test_the_demo_is_a_page_and_its_agents_until_a_signal_comes(tmp_path: Path) -> None:
    # No key of whoever runs the tests.
    keys = {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": "", "ANTHROPIC_API_KEY": ""}
    with running([*USECHAT, "demo", "--port", "0"], tmp_path, **keys) as process:
        first = process.first_line()
        assert " at http" in first, first + process.errors()
        url = first.rpartition(" at ")[2].strip()
        with httpx.Client(base_url=url, timeout=HANG_SECONDS) as page:
            agents = page.get("/page/settings").json()["agents"]
            asked = page.post("/api/sessions/demo/chat", json=message("Fix the failing test")).text
            [cookie] = dict(page.cookies).values()
            # One that is still being written does not hold up the end.
            with page.stream("POST", "/api/generator", json=message("Recite the tide table")) as answer:
                read_until(answer.iter_lines(), "Day")
                process.send(signal.SIGINT)
                code, rest = process.wait()
        assert parts(asked)[-1]["text"] == "All 14 tests pass now."
        assert (code, first + rest) == (0, BANNER.format(url=url))
        assert cookie not in process.errors()
    assert [agent["name"] for agent in agents] == [
        "Python generator",
        "Open Harness flow",
        "Agent Ops session",
        "Deep agent",
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_demo_is_for_this_computer_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["usechat", "demo", "--host", "0.0.0.0"])  # noqa: S104
    with pytest.raises(SystemExit) as caught:
        main()
    sentence = "The demo signs in everybody who opens its page, so it cannot listen at 0.0.0.0.\n"
    assert (caught.value.code, capsys.readouterr().err) == (2, sentence)
