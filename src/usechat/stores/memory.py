from usechat.stores import TurnLog

__all__ = ["MemoryTurnStore"]


class MemoryTurnStore:
    """Turns of this process only."""

    def __init__(self) -> None:
        self._live: dict[str, TurnLog] = {}

    async def open(self, log: TurnLog) -> None:
        self._live[log.chat] = log

    async def live(self, chat: str) -> TurnLog | None:
        return self._live.get(chat)

    async def close(self, log: TurnLog) -> None:
        if self._live.get(log.chat) is log:
            del self._live[log.chat]

    async def stop(self, chat: str, turn: str | None = None) -> bool:
        log = self._live.get(chat)
        if log is None or turn not in (None, log.turn):
            return False
        log.on_stop()
        return True
