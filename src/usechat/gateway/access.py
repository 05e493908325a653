"""Who may do what with a session: the rules of Agent Ops, as a function of what is known."""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

__all__ = ["REQUIRED", "Endpoint", "Kind", "Role", "Session", "Visibility", "may_access"]

Role: TypeAlias = Literal["viewer", "collaborator", "owner"]
Kind: TypeAlias = Literal["session", "orchestrator", "workflow"]
Visibility: TypeAlias = Literal["private", "org_visible", "org_joinable"]
Endpoint: TypeAlias = Literal["chat", "stop", "answer", "stream", "channels"]

REQUIRED: Final[Mapping[Endpoint, Role]] = {
    "chat": "collaborator",
    "stop": "collaborator",
    "answer": "collaborator",
    "stream": "viewer",
    "channels": "viewer",
}
_RANK: Final[Mapping[str, int]] = {"viewer": 0, "collaborator": 1, "owner": 2}


class Session(Struct, frozen=True):
    owner: str
    kind: Kind
    visibility: Visibility


def may_access(session: Session | None, user: str, granted: Role | None, required: Role) -> bool:
    """Whether a user of the organisation who was granted this role in the session may do what needs the required one.

    A kind, visibility or role that nobody knows opens nothing.
    """
    if session is None:
        return False
    if session.owner == user:
        return True
    if session.kind != "session":
        return False
    if granted is not None and _RANK.get(granted, -1) >= _RANK[required]:
        return True
    # Joining is for any role, also that of an owner.
    if session.visibility == "org_joinable":
        return True
    return session.visibility == "org_visible" and required == "viewer"
