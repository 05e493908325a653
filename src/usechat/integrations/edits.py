"""Arguments that the user changed before a call runs: `approvals[id] = {"input": {…}}` in the body."""

from collections.abc import Iterable
from typing import Any

from usechat.errors import RequestError
from usechat.turns.chat import Approval

__all__ = ["check_edits", "edited_input"]


def check_edits(approvals: Iterable[Approval], *, also: str = "") -> None:
    """Refuse what is no edit: a user who wants to change a call must not have the unchanged call run.

    `also` is what a richer answer may have in place of the input.

    Raises:
        RequestError: One of them is none.
    """
    for approval in approvals:
        extra: Any = approval.extra
        is_other = bool(also) and isinstance(extra, dict) and also in extra and "input" not in extra
        if not is_other:
            edited_input(approval)


def edited_input(approval: Approval) -> dict[str, Any] | None:
    """The arguments that the user has changed; None if the call is to run as it is, or not at all.

    Raises:
        RequestError: It is something else.
    """
    match approval.extra:
        case None:
            return None
        case _ if not approval.approved:
            return None
        case {"input": dict()}:
            return approval.extra["input"]
        case _:
            raise RequestError('An approval can be answered with {"input": {…}} to change the arguments.', status=409)
