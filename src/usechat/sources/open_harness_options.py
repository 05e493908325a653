"""What of an Open Harness run a page is shown."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

__all__ = ["SWITCHES", "TransportOptions", "read_options"]


class TransportOptions(Struct, frozen=True, kw_only=True):
    """What the stream of a run holds beside text and tools.

    `send_step_markers` begins a step with every node. `send_flow_metadata` sends what happens in the flow, with its
    state and commands, and `send_node_outputs` what nodes return: either may be more than a user should see.
    `generate_message_id` gives the ids of new messages in place of the server's own.
    """

    send_reasoning: bool = True
    send_step_markers: bool = True
    send_flow_metadata: bool = False
    send_node_outputs: bool = False
    generate_message_id: Callable[[], str] | None = None


SWITCHES: Final = tuple(name for name in TransportOptions.__struct_fields__ if name.startswith("send_"))
"""The options that are on or off."""


def read_options(given: Mapping[str, Any]) -> TransportOptions:
    """The options from JSON, by their names here or as the TypeScript adapter spells them (`sendReasoning`).

    Raises:
        ValueError: a name is not known, or a value is not true or false.
    """
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        switch = next((switch for switch in SWITCHES if name in (switch, _camel(switch))), None)
        if switch is None:
            raise ValueError(f"There is no option {name!r:.60}: the options are {', '.join(SWITCHES)}.")
        if not isinstance(value, bool):
            raise ValueError(f"The option {name} is true or false, not {value!r:.60}.")
        chosen[switch] = value
    return TransportOptions(**chosen)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
