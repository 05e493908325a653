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


_RAW: Final = {"sub-agents": "A raw model call has none.", "map": "Raw streams have no log of their own."}
FRAMEWORKS: Final[dict[str, Framework]] = {
    "openai-chat": Framework(
        "openai_chat",
        "openai",
        "openai",
        is_here=True,
        cannot={**_RAW, "signatures": "Chat Completions takes no reasoning."},
    ),
    "openai-responses": Framework("openai_responses", "openai", "openai", is_here=True, cannot=_RAW),
    "anthropic": Framework("anthropic_raw", "anthropic", "anthropic", is_here=True, cannot=_RAW),
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
        return {*self.framework.cannot, *(self.framework.not_yet if self.is_oldest else ())}


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
