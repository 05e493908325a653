"""Who is told what happens in a run."""

import logging
from collections.abc import Callable

from usechat.flows.scheduling import Event

__all__ = ["Listeners"]

_log = logging.getLogger("usechat")


class Listeners:
    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], None]] = []

    def add(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Give the listener each event from now on; the result ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def tell(self, event: Event) -> None:
        """Tell everybody; a listener that raises is logged and ignored."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            # A listener that fails is its own loss, not the run's.
            except Exception:  # noqa: BLE001
                _log.exception("a listener of a run failed")
