"""Open Harness flows as a chat transport."""

from typing import Final

from usechat.integrations.open_harness.agent import ChatRuns, OpenHarnessAgent, Runtime, RuntimeMaker
from usechat.integrations.open_harness.translator import TransportOptions
from usechat.transports.agent import AgentTransport

__all__ = ["OpenHarnessChatTransport"]

_OPTIONS: Final = TransportOptions()


class OpenHarnessChatTransport(AgentTransport):
    """Chats whose answers a runtime gives; `create_app` serves its agent.

    `runtime` is a function that makes a new one for each run, or a single runtime for a single run. With the `store`
    that its runtimes write to, a chat goes on with the run that it had, also in another process; the function is then
    given the id of that run, or None for a new one. `unused` counts the events that could not be shown.
    """

    def __init__(
        self,
        runtime: Runtime | RuntimeMaker,
        options: TransportOptions = _OPTIONS,
        *,
        store: ChatRuns | None = None,
    ) -> None:
        """Prepare the chats.

        Raises:
            TypeError: there is a store, but no function that takes the id of a run.
        """
        super().__init__(OpenHarnessAgent(runtime, options, store), new_message_id=options.generate_message_id)
