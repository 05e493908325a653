"""What is imported: no framework but the one that is served."""

import json
import subprocess
import sys
from typing import Final

import pytest

from usechat.integrations import EXTRAS

PACKAGES: Final = sorted({*EXTRAS, "anthropic", "openai"} - {"fastapi"})
PLAIN: Final = "from usechat import create_app\ncreate_app(lambda chat: 'Hello')"
GRAPH: Final = """
from langgraph.graph import MessagesState, StateGraph
graph = StateGraph(MessagesState).add_node("node", lambda state: state).set_entry_point("node").compile()
from usechat import create_app
create_app(graph)
"""
LOADED: Final = """
import json, sys
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def loaded(program: str) -> set[str]:
    """The packages that a program has imported in the end."""
    done = subprocess.run([sys.executable, "-c", program + LOADED], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout)) & set(PACKAGES)


@pytest.mark.parametrize("program", ["import usechat", PLAIN])
def test_an_agent_of_ones_own_loads_no_framework(program: str) -> None:
    assert loaded(program) == set()


def test_a_framework_that_is_served_loads_only_its_own_packages() -> None:
    assert loaded(GRAPH) == {"langchain_core", "langgraph"}


@pytest.mark.parametrize("module", ["openai", "anthropic"])
def test_the_integration_of_an_sdk_does_not_load_the_sdk(module: str) -> None:
    assert loaded(f"import usechat.integrations.{module}") == set()
