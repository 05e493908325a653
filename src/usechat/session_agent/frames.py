"""The frames of a SessionAgent that need more than a literal."""

import time
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

__all__ = ["DEFAULT_CHANNEL", "MODELS", "Frame", "audit_entry", "present", "unix_time"]

Frame: TypeAlias = dict[str, Any]

DEFAULT_CHANNEL: Final = {"channelType": "web", "channelId": "default"}
MODELS: Final = [{"provider": "usechat", "models": [{"id": "usechat/scripted", "name": "Scripted"}]}]


def unix_time() -> int:
    """The time as messages have it."""
    return int(time.time())


def present(**fields: Any) -> Frame:
    """The fields that have a value: Agent Ops leaves the others out."""
    return {name: value for name, value in fields.items() if value is not None}


def audit_entry(event: str, summary: str, actor: str | None = None, metadata: Frame | None = None) -> Frame:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return present(eventType=event, summary=summary[:120], actorId=actor, metadata=metadata, createdAt=now)
