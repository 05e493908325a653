"""How turns are kept on Redis, and how Redis reads numbers."""

from msgspec import Struct

__all__ = ["Settings", "milliseconds", "number"]


class Settings(Struct, frozen=True, kw_only=True):
    """In seconds and bytes; the times of turns that run are refreshed with their leases."""

    lease: float
    keep: float
    keep_turns: int
    keep_bytes: int
    keep_running: float
    keep_spent: float
    most_copied: int
    patience: float

    @property
    def lease_us(self) -> bytes:
        return number(int(self.lease * 1_000_000))


def number(value: int) -> bytes:
    return b"%d" % value


def milliseconds(seconds: float) -> bytes:
    return b"%d" % (seconds * 1000)
