"""What a page is shown of an Agent Ops session, and the bounds of the sockets to sessions; both need no driver."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, ValidationError, convert

from usechat.integrations.agent_ops.frames import DEFAULT_CHANNEL, PASSED_OVER

__all__ = ["AgentOpsOptions", "SocketLimits", "read_options"]


class AgentOpsOptions(Struct, frozen=True, kw_only=True):
    """`forward` names frames that become data parts (`git-state` is `data-git-state`); `transient_status` shows the
    agent's status without keeping it in the message; `channel` is the one whose turn a log is read for.

    Raises:
        ValueError: a name in `forward` is none of the frames that can be forwarded.
    """

    forward: frozenset[str] = frozenset()
    transient_status: bool = False
    channel: str = DEFAULT_CHANNEL

    def __post_init__(self) -> None:
        if unknown := sorted(self.forward - PASSED_OVER):
            raise ValueError(f"{unknown[0]!r:.60} cannot be forwarded: what can is {', '.join(sorted(PASSED_OVER))}.")


class SocketLimits(Struct, frozen=True):
    """How many sockets may be open at once, how long one may take to open, and how large a frame may be.

    The frames of more than 1 MiB that are on their way to clients have `frames_in_all` bytes together; others wait. The
    sockets of a user include those of withdrawn prompts that still wait for their turn.
    """

    per_session: int = 256
    per_user: int = 160
    in_all: int = 2_000
    open_seconds: float = 10.0
    frame: int = 64 * 1024 * 1024
    frames_in_all: int = 32 * 1024 * 1024


def read_options(given: Mapping[str, Any]) -> AgentOpsOptions:
    """The options from JSON.

    Raises:
        ValueError: a name is not known, or a value is of the wrong kind.
    """
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _KINDS:
            raise ValueError(f"There is no option {name!r:.60}: the options are {', '.join(_KINDS)}.")
        kind, what = _KINDS[name]
        try:
            chosen[name] = convert([value] if name == "forward" and isinstance(value, str) else value, kind)
        except ValidationError:
            raise ValueError(f"The option {name} is {what}, not {value!r:.60}.") from None
    return AgentOpsOptions(**chosen)


_KINDS: Final[dict[str, tuple[Any, str]]] = {
    "forward": (frozenset[str], "a list of frames"),
    "transient_status": (bool, "true or false"),
    "channel": (str, "a text like web:default"),
}
