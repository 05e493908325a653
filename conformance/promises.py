"""Which of the pinned clients each profile promises to please."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from usechat.protocol.chunks import Chunk, ToolApprovalRequest, ToolOutputDenied
from usechat.protocol.clients import CLIENTS, ClientName, Release, newer_than

__all__ = ["PINNED", "PROMISES", "V5", "V6", "V7", "knowing", "promised", "release_of"]


def release_of(client: str) -> Release:
    major, _, patch = client.split(".")
    return Release(int(major), int(patch))


def _pinned() -> list[str]:
    package = json.loads((Path(__file__).parent / "package.json").read_text("utf-8"))
    aliases = (alias for alias in package["dependencies"] if alias.startswith("ai-"))
    return sorted((alias.removeprefix("ai-") for alias in aliases), key=release_of)


def _promised(profile: ClientName) -> list[str]:
    oldest = {release.major: release for release in CLIENTS[profile].oldest}
    releases = {client: release_of(client) for client in PINNED}
    return [client for client, own in releases.items() if own.major in oldest and oldest[own.major] <= own]


PINNED: Final = _pinned()
# The newest release of each major.
V5, V6, V7 = (max((one for one in PINNED if one.startswith(f"{major}.")), key=release_of) for major in (5, 6, 7))
PROMISES: Final[dict[ClientName, list[str]]] = {profile: _promised(profile) for profile in CLIENTS}


def promised(profile: ClientName, stream: Iterable[Chunk]) -> list[str]:
    """The clients that must take this stream: approvals have no form that a v5 client takes, so they ask for v6."""
    approvals = any(isinstance(chunk, ToolApprovalRequest | ToolOutputDenied) for chunk in stream)
    return [client for client in PROMISES[profile] if not approvals or release_of(client).major >= 6]


def knowing(stream: Iterable[Chunk]) -> list[str]:
    """The clients that know every chunk, field and value of the stream."""
    chunks = list(stream)
    return [client for client in PINNED if not any(any(newer_than(chunk, release_of(client))) for chunk in chunks)]
