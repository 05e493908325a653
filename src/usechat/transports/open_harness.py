"""Open Harness flows as a chat transport."""

from typing import Final

from usechat.agents.open_harness import OpenHarnessAgent, Runtime, RuntimeMaker
from usechat.sources.open_harness import TransportOptions
from usechat.transports.agent import AgentTransport

__all__ = ["OpenHarnessChatTransport"]

_OPTIONS: Final = TransportOptions()


class OpenHarnessChatTransport(AgentTransport):
    """Chats whose answers a runtime gives; `create_app` serves its agent.

    `runtime` is a function that makes a new one for each run, or a single runtime for a single run. `unused` counts the
    events that could not be shown.
    """

    def __init__(self, runtime: Runtime | RuntimeMaker, options: TransportOptions = _OPTIONS) -> None:
        super().__init__(OpenHarnessAgent(runtime, options), new_message_id=options.generate_message_id)
