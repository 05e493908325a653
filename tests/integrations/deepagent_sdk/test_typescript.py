"""The types are made from the classes; that a compiler takes them is seen in browser/test_parts.py."""

import re
from typing import get_type_hints

import msgspec
import pytest
from typer.testing import CliRunner

from support.goldens import cases
from usechat.cli.app import app
from usechat.integrations.deepagent_sdk import typescript as deep_agent_typescript
from usechat.integrations.deepagent_sdk.events import SIDE_EVENTS
from usechat.integrations.deepagent_sdk.typescript import GRAPH_PARTS, deep_agent_types


def test_every_side_event_has_a_type_with_its_fields() -> None:
    types = deep_agent_types()
    assert set(re.findall(r'^  "?([a-z-]+)"?: \{', types, re.MULTILINE)) == {
        *SIDE_EVENTS,
        *("approval-requested", "approval-response", "batch", "subagent", "interrupt"),
    }
    fields = "toolCallId?: string; command: string; exitCode: number | null; truncated: boolean; sandboxId?: string"
    assert f'  "execute-finish": {{ {fields} }};\n' in types
    assert '  "todos-changed": { toolCallId?: string; todos: DeepAgentTodo[] };\n' in types


def test_the_parts_of_the_recorded_graphs_have_the_types() -> None:
    seen: set[str] = set()
    for case in cases("langgraph"):
        for line in case.chunks.read_bytes().splitlines():
            chunk = msgspec.json.decode(line)
            name = chunk["type"].removeprefix("data-")
            if name in GRAPH_PARTS:
                assert chunk["data"].keys() <= get_type_hints(GRAPH_PARTS[name]).keys()
                msgspec.convert(chunk["data"], GRAPH_PARTS[name])
                seen.add(name)
    assert seen == GRAPH_PARTS.keys()


def test_a_type_without_a_form_in_typescript_is_noticed() -> None:
    with pytest.raises(TypeError, match="has no form in TypeScript"):
        deep_agent_typescript._type(set[str])  # pyright: ignore[reportPrivateUsage]


def test_the_command_prints_them() -> None:
    done = CliRunner().invoke(app, ["types", "deep-agent"])
    assert (done.exit_code, done.stdout) == (0, deep_agent_types())
    done = CliRunner().invoke(app, ["types", "ag-ui"])
    sentence = "There are no types for 'ag-ui'. There are types for deep-agent.\n"
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", sentence)
