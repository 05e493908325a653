"""The integration that CONTRIBUTING.md shows serves its framework and maps its logs."""

import json
import re
import sys
from collections.abc import AsyncGenerator
from importlib import util
from pathlib import Path
from typing import Any, Final

import pytest

from support.loopback import ask, parts, serving, text_part
from usechat import MessageReader, MessageWriter, create_app
from usechat.events.mapper import TranslatingMapper

PAGE: Final = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS: Final[list[tuple[str, str]]] = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


class Abacus:
    async def solve(self, question: str) -> AsyncGenerator[dict[str, Any], None]:
        for line in log():
            yield line
        yield {"type": "say", "text": f" You said {question}."}


def log() -> list[dict[str, Any]]:
    [lines] = [block for language, block in BLOCKS if language == "json"]
    return [json.loads(line) for line in lines.splitlines()]


@pytest.fixture
def abacus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    [program] = [block for language, block in BLOCKS if language == "python"]
    file = tmp_path / "abacus.py"
    file.write_text(program, encoding="utf-8")
    spec = util.spec_from_file_location("abacus", file)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "abacus", module)
    spec.loader.exec_module(module)
    return module


def test_the_integration_serves_an_object_of_its_framework(abacus: Any) -> None:
    assert abacus.AbacusAgent.wrap("no abacus") is None
    with serving(create_app(abacus.AbacusAgent.wrap(Abacus()))) as url:
        said = parts(ask(f"{url}/api/chat").text)
    assert [part["type"] for part in said] == ["step-start", "text", "tool-move", "step-start", "text"]
    assert said[-1] == text_part("It is 7. You said Hello.")


def test_the_integration_maps_the_log_of_the_page(abacus: Any) -> None:
    writer = MessageWriter("message-1", new_id=iter("abcdefgh").__next__)
    mapper = TranslatingMapper(abacus.log_translator({}), writer)
    reader = MessageReader()
    for event in log():
        for chunk in mapper.map(event):
            reader.apply(chunk)
    for chunk in mapper.end():
        reader.apply(chunk)
    [call] = [part for part in reader.message.parts if part["type"] == "tool-move"]
    assert (call["input"], call["output"]) == ({"beads": 3}, 7)
    with pytest.raises(ValueError, match="Abacus has no options"):
        abacus.log_translator({"speed": 3})


def test_every_folder_and_layer_of_the_package_is_named() -> None:
    package = Path(__file__).parents[2] / "src" / "usechat"
    folders = {path.name for path in package.iterdir() if (path / "__init__.py").is_file()} | {"react"}
    named = {
        name
        for row in re.findall(r"^\| (`src/usechat/.*?) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"(\w+)(?:/|\.py)`", row)
    }
    assert folders - named == set()
    [layers] = [block for _, block in BLOCKS if block.startswith("cli > ")]
    config = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    [contract] = re.findall(r"^layers = \[\n(.*?)^\]", config, re.MULTILINE | re.DOTALL)
    wanted = [line.strip(' ",').replace("usechat.", "") for line in contract.splitlines()]
    assert " ".join(layers.split()) == " > ".join(wanted)
