"""Which frameworks there are, where their packages are, and which of the sixteen rows each can promise.

`make frameworks` makes an environment for each, with the newest releases and with the oldest that the extra allows.
Without it only those run that the development environment has.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field

__all__ = ["FRAMEWORKS", "HERE", "Framework", "chosen"]

HERE: Final = Path(__file__).parent


class Framework(Struct, frozen=True):
    """One app of `live/`; `cannot` has the rows that do not apply, each with its reason."""

    app: str
    # The distribution whose version is shown, and the environment that has it: a lock in `locks/frameworks/`.
    package: str
    environment: str
    # Whether the development environment has it.
    is_here: bool = False
    cannot: Mapping[str, str] = field(default_factory=dict[str, str])
    # The rows that the oldest release lacks, and newer ones have.
    not_yet: Mapping[str, str] = field(default_factory=dict[str, str])
    # Whether one of its agents can hand the conversation to another.
    hands_off: bool = False


_RAW: Final = {
    "sub-agents": "A raw model call has none.",
    "handoffs": "A raw model call has no other agent.",
    "map": "Raw streams have no log of their own.",
}
_AG_UI: Final = {
    "handoffs": "AG-UI has no event for one.",
    "length": "AG-UI does not say why an answer ended.",
    "sources": "AG-UI has no citations.",
}
_AG_UI_OLD: Final = {"approvals": "Interrupts came with 0.1.19.", "edits": "Interrupts came with 0.1.19."}
_OPENAI_AGENTS: Final = {"browser tools": "The SDK runs every tool itself, and has none that somebody else answers."}
_AGNO: Final = {
    "arguments": "Agno has a call only when its arguments are complete.",
    "length": "Agno drops the provider's finish reason.",
    "signatures": "Chat Completions takes no reasoning.",
}
_ADK: Final = {"arguments": "ADK gives arguments whole, or as values of JSON paths, which are no text."}
FRAMEWORKS: Final[dict[str, Framework]] = {
    "openai-chat": Framework(
        "openai_chat",
        "openai",
        "openai",
        is_here=True,
        cannot={**_RAW, "signatures": "Chat Completions takes no reasoning."},
    ),
    "openai-responses": Framework("openai_responses", "openai", "openai", is_here=True, cannot=_RAW),
    "ag-ui": Framework(
        "ag_ui",
        "ag-ui-protocol",
        "ag-ui",
        cannot=_AG_UI,
        not_yet={
            **_AG_UI_OLD,
            "sub-agents": "They came with 0.1.21.",
            "usage": "It came with 0.1.20.",
        },
    ),
    "ag-ui-pydantic-ai": Framework(
        "ag_ui_pydantic_ai",
        "pydantic-ai-slim",
        "ag-ui",
        cannot={
            **_AG_UI,
            "sub-agents": "Pydantic AI does not send the events of nested runs.",
            "tool errors": "Pydantic AI's AG-UI adapter sends the text of an error as the result.",
            "usage": "Pydantic AI sends it only if asked, and only by AG-UI 1.0.",
        },
        not_yet=_AG_UI_OLD,
    ),
    "pydantic-ai": Framework("pydantic_ai", "pydantic-ai-slim", "pydantic-ai", is_here=True),
    "google-adk": Framework("google_adk", "google-adk", "google-adk", cannot=_ADK, hands_off=True),
    "google-adk-runner": Framework("google_adk_runner", "google-adk", "google-adk", cannot=_ADK, hands_off=True),
    "llama-index": Framework(
        "llama_index_agents",
        "llama-index-core",
        "llama-index",
        cannot={
            "approvals": "A tool asks with an event of its own, and the user's next message answers it.",
            "browser tools": "LlamaIndex runs every tool itself.",
            "signatures": "Chat Completions takes no reasoning.",
        },
        hands_off=True,
    ),
    "anthropic": Framework("anthropic_raw", "anthropic", "anthropic", is_here=True, cannot=_RAW),
    "openai-agents": Framework(
        "openai_agents_responses", "openai-agents", "openai-agents", cannot=_OPENAI_AGENTS, hands_off=True
    ),
    "openai-agents-chat": Framework(
        "openai_agents_chat",
        "openai-agents",
        "openai-agents",
        cannot={
            **_OPENAI_AGENTS,
            "signatures": "Chat Completions takes no reasoning.",
            "length": "The SDK drops the finish reason of Chat Completions.",
        },
        not_yet={"sources": "0.17 drops the citations of Chat Completions."},
        hands_off=True,
    ),
    "agno": Framework("agno_agent", "agno", "agno", cannot=_AGNO),
    "agno-claude": Framework(
        "agno_claude", "agno", "agno", cannot={row: why for row, why in _AGNO.items() if row != "signatures"}
    ),
    "agno-db": Framework("agno_db", "agno", "agno", cannot=_AGNO),
    "agno-team": Framework("agno_team", "agno", "agno", cannot=_AGNO),
    "claude-agent": Framework(
        "claude_agent",
        "claude-agent-sdk",
        "claude-agent",
        cannot={
            "browser tools": "The SDK runs every tool itself, and takes a result from nobody else.",
            "length": "The CLI lets the model go on after its answer was cut off.",
        },
    ),
    "agent-framework": Framework(
        "agent_framework_agent",
        "agent-framework-core",
        "agent-framework",
        cannot={
            "edits": "An approval is bound to the arguments that were asked about.",
            "signatures": "The service keeps the reasoning.",
        },
        not_yet={
            "sources": "1.0 drops the addresses of citations.",
            "sub-agents": "In 1.0 an agent does not know the call that it works for.",
            "length": "1.0 drops the provider's finish reason.",
        },
    ),
    "agent-framework-chat": Framework(
        "agent_framework_chat",
        "agent-framework-core",
        "agent-framework",
        cannot={
            "edits": "An approval is bound to the arguments that were asked about.",
            "reasoning": "The client drops it.",
            "signatures": "Chat Completions takes no reasoning.",
            "sources": "The client drops citations.",
            "images": "The client makes two messages of a text and its image.",
        },
        not_yet={
            "history": "The client of 1.0 makes two messages of a text and its calls.",
            "length": "1.0 drops the provider's finish reason.",
            "sub-agents": "In 1.0 an agent does not know the call that it works for.",
        },
    ),
    "strands": Framework(
        "strands_agents",
        "strands-agents",
        "strands",
        cannot={"browser tools": "Strands runs every tool itself; a tool can interrupt and ask the user instead."},
        not_yet={
            "sources": "In 1.41 Anthropic's model fails when it reads a citation.",
            "signatures": "In 1.41 the app has OpenAI's model, since Anthropic's fails; Chat Completions has none.",
        },
    ),
}


class Environment(Struct, frozen=True):
    """A framework in an environment that has it."""

    name: str
    python: str
    version: str
    is_oldest: bool = False

    @property
    def framework(self) -> Framework:
        return FRAMEWORKS[self.name]

    @property
    def left_out(self) -> set[str]:
        """The rows that this release cannot promise."""
        handoffs = set[str]() if self.framework.hands_off else {"handoffs"}
        return {*self.framework.cannot, *(self.framework.not_yet if self.is_oldest else ()), *handoffs}


def chosen() -> list[Environment]:
    """The frameworks of the environments that `USECHAT_FRAMEWORKS` names, or those that are here."""
    folders = os.environ.get("USECHAT_FRAMEWORKS", "").split()
    if not folders:
        return [_environment(name, sys.executable) for name, one in FRAMEWORKS.items() if one.is_here]
    return [
        _environment(name, f"{folder}/bin/python")
        for folder in folders
        for name, one in FRAMEWORKS.items()
        if one.environment == Path(folder).name.removesuffix("-floor")
    ]


def _environment(name: str, python: str) -> Environment:
    program = f"from importlib.metadata import version; print(version({FRAMEWORKS[name].package!r}))"
    version = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True)
    return Environment(name, python, version.stdout.strip(), is_oldest=python.endswith("-floor/bin/python"))
