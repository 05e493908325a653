"""What the README shows works as it is shown."""

import re
from pathlib import Path
from typing import Any

import usechat
from support.loopback import ask, serving, text_part
from support.loopback import parts as message_parts

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102
    return names


def test_hello_is_an_app_in_ten_lines() -> None:
    hello = next(block for block in BLOCKS if "create_app" in block)
    assert len([line for line in hello.splitlines() if line]) <= 10
    paths = [route.path for route in run(hello)["app"].routes]
    assert "/api/chat" in paths


def test_a_flow_is_served_in_under_ten_lines() -> None:
    block = next(block for block in BLOCKS if "OpenHarnessChatTransport" in block)
    assert len([line for line in block.splitlines() if line]) < 10
    with serving(run(block)["app"]) as url:
        parts = message_parts(ask(f"{url}/api/chat", "A story about a cat").text)
    assert parts == [{"type": "step-start"}, text_part("Too short: it has 5 words.")]


def test_the_writer_of_the_readme_writes_a_whole_message() -> None:
    lines = run(next(block for block in BLOCKS if "MessageWriter" in block))["lines"]
    assert lines[0] == b'data: {"type":"start","messageId":"message-1"}\n\n'
    assert lines[-1] == b'data: {"type":"finish","finishReason":"stop"}\n\n'
    assert len(lines) == 8


def test_every_exported_name_is_there() -> None:
    assert [name for name in usechat.__all__ if not hasattr(usechat, name)] == []
    assert not hasattr(usechat, "nothing")
