"""The line of the log that tells of a turn, without anything that was said in it."""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from usechat.stores import Outcome, TurnLog

__all__ = ["log_turn"]

_log = logging.getLogger("usechat")

_PLAIN: Final = re.compile(r"[\w.-]+", re.ASCII)


def log_turn(
    turn: str, names: Mapping[str, str], outcome: Outcome, log: TurnLog, arrived: float, seconds: float
) -> None:
    """Write the line of a turn that has ended so many seconds after its request had arrived; `names` say where."""
    if not _log.isEnabledFor(logging.INFO):
        return
    fields: dict[str, Any] = {
        "turn": turn,
        **names,
        "outcome": outcome,
        # An agent that does not wait has ended before anybody reads.
        "ttfb": round(seconds if log.first_taken is None else log.first_taken - arrived, 4),
        "chunks": len(log.frames),
        "bytes": log.size,
        "duration": round(seconds, 4),
    }
    line = " ".join(f"{name}={_spelled(value)}" for name, value in fields.items())
    _log.info("%s", line, extra={"fields": fields})


def _spelled(value: object) -> str:
    # An id may hold anything that looks like more of the line, or like another one.
    return str(value) if _PLAIN.fullmatch(str(value)) else json.dumps(value)
