"""What a user reads when an agent fails."""

import logging
import secrets
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from usechat.errors import AgentError

__all__ = ["MASKED", "ErrorText", "explain"]

ErrorText: TypeAlias = Callable[[BaseException], str | None]

_log = logging.getLogger("usechat")

MASKED: Final = "Something went wrong."


def explain(error: BaseException, error_text: ErrorText | None = None) -> str:
    """What a user reads of an exception: what `error_text` chose, or a sentence with the id that the log has too.

    The text of an `AgentError` is meant for the user.
    """
    error_id = secrets.token_hex(4)
    if isinstance(error, AgentError):
        # Its text may quote a user's, who could make it look like another line.
        told = ascii("; ".join((str(error), *getattr(error, "__notes__", ()))))
        _log.warning("an agent ended its turn, error %s: %.500s", error_id, told, exc_info=error.__cause__)
    else:
        _log.error("an agent failed, error %s", error_id, exc_info=error)
    try:
        chosen = cast("object", error_text(error)) if error_text is not None else None
    # The app chooses the text, and may fail in any way.
    except BaseException:  # noqa: BLE001
        _log.exception("the text of error %s failed", error_id)
        chosen = None
    if chosen and isinstance(chosen, str):
        return chosen
    return str(error) if isinstance(error, AgentError) else f"{MASKED} (Error {error_id})"
