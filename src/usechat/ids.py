"""Random ids that cannot be guessed."""

import secrets

__all__ = ["new_id", "new_turn_id"]


def new_id() -> str:
    """An id for a message, a part or a call."""
    return secrets.token_urlsafe(12)


def new_turn_id() -> str:
    return secrets.token_hex(16)
