"""The bounds of the sockets to sessions, for whoever sets them without opening one."""

from msgspec import Struct

__all__ = ["SocketLimits"]


class SocketLimits(Struct, frozen=True):
    """How many sockets may be open at once, how long one may take to open, and how large a frame may be.

    The frames of more than 1 MiB that are on their way to a client have `frames_in_all` bytes together; others wait.

    Those of a user are also those of prompts that were withdrawn and have not come to their turn.
    """

    per_session: int = 256
    per_user: int = 160
    in_all: int = 2_000
    open_seconds: float = 10.0
    frame: int = 64 * 1024 * 1024
    frames_in_all: int = 32 * 1024 * 1024
