"""What the scripts of Redis do, in plain Python: what they reply, what they publish, and what is there afterwards.

Epochs are given to the model, since they come from the clock of Redis. A lease is either endless or has ended.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

__all__ = ["ScriptsModel"]

Answer: TypeAlias = list[Any]


class _Turn:
    def __init__(self, epoch: int, owner: str, head: str, *, expired: bool) -> None:
        self.phase = "claimed"
        self.epoch = epoch
        self.owner = owner
        self.head = head
        self.expired = expired
        self.last = 0
        self.stop: str | None = None
        self.continues: str | None = None
        self.ending: tuple[str, int] | None = None
        self.outcome: str | None = None
        self.size = 0


class ScriptsModel:
    """One chat; `published` is what was said since somebody looked, as channels and messages."""

    def __init__(self) -> None:
        self.turn: str | None = None
        self.head = ""
        self.highest = 0
        self.turns: dict[str, _Turn] = {}
        self.logs: dict[str, list[tuple[int, str]]] = {}
        self.readers: dict[str, dict[str, int]] = {}
        self.ended: list[str] = []
        self.used: set[str] = set()
        self.published: list[tuple[str, str]] = []

    def claim(self, turn: str, worker: str, head: str, epoch: int, *, expired: bool) -> Answer:
        held = self.turns.get(self.turn or "")
        if held is not None and self.turn is not None:
            if self.turn == turn and held.phase == "claimed" and held.owner == worker:
                return ["OK", held.epoch]
            return ["RUNNING", held.head, held.phase]
        assert epoch > self.highest
        self.turn, self.head, self.highest = turn, head, epoch
        self.turns[turn] = _Turn(epoch, worker, head, expired=expired)
        return ["OK", epoch]

    def open(self, turn: str, epoch: int, worker: str, continues: str, ids: Sequence[str]) -> Answer:
        found = self.turns.get(turn)
        if found is None or self._is_foreign(found, epoch, worker) or found.phase == "ended":
            return ["FENCED"]
        if found.phase == "claimed":
            if self.used & set(ids):
                return ["USED"]
            self.used |= set(ids)
            found.phase, found.continues = "open", continues or None
            self.published.append((turn, "open"))
        return ["OK", found.stop]

    def append(self, turn: str, epoch: int, worker: str, after: int, last: int, data: str) -> Answer:
        found = self.turns.get(turn)
        if found is None:
            return ["GONE"]
        if self._is_foreign(found, epoch, worker):
            return ["FENCED"]
        if found.phase != "open":
            return ["CLOSED"]
        if found.last > 0 and not self.logs.get(turn):
            found.last = 0
            return ["BEHIND", 0]
        if found.last >= last:
            return ["DUPLICATE", found.last, found.stop]
        if found.last != after:
            return ["BEHIND", found.last]
        self.logs.setdefault(turn, []).append((last, data))
        found.last = last
        self.published.append((turn, f"more {after} {last} \n{data}"))
        return ["OK", last, found.stop]

    def seal(self, turn: str, epoch: int, worker: str, after: int, data: str, count: int, outcome: str) -> Answer:
        found = self.turns.get(turn)
        if found is None:
            return ["GONE"]
        if self._is_foreign(found, epoch, worker):
            return ["FENCED"]
        if found.phase != "open":
            return ["CLOSED"]
        if found.last != after:
            return ["BEHIND", found.last]
        found.phase, found.ending, found.outcome = "sealed", (data, count), outcome
        return ["OK"]

    def release(
        self, turn: str, epoch: int | None, worker: str, most: int, most_bytes: int, phase: str, size: int
    ) -> Answer:
        found = self.turns.get(turn)
        if found is None:
            return ["GONE"]
        if (epoch is not None and found.epoch != epoch) or found.owner != worker:
            return ["FENCED"]
        if found.phase == "ended":
            return ["OK"]
        if phase == "sealed" and found.phase != "sealed":
            return ["GONE"]
        self.readers.pop(turn, None)
        self._free(turn)
        if found.ending is None:
            self._forget(turn)
            self.published.append((turn, "gone"))
            return ["OK"]
        (data, count), before = found.ending, found.last
        found.phase, found.ending, found.last = "ended", None, before + count
        if data:
            self.logs.setdefault(turn, []).append((found.last, data))
        self.ended = sorted({*self.ended, turn}, key=lambda name: (self.turns[name].epoch, name))
        found.size = size
        sizes = [self.turns[name].size if name in self.turns else 0 for name in self.ended]
        while len(self.ended) > most or (len(self.ended) > 1 and sum(sizes) > most_bytes):
            self._forget(self.ended.pop(0))
            sizes.pop(0)
        self.published.append((turn, f"end {before} {found.last} {found.outcome}\n{data}"))
        return ["OK"]

    def stop(self, turn: str, why: str) -> Answer:
        found = self.turns.get(turn)
        if found is None or found.phase == "ended":
            return ["GONE"]
        found.stop = found.stop or why
        self.published.append((f"w:{found.owner}", f"stop {turn} {found.epoch} {why}"))
        return ["OK", found.epoch]

    def take_over(self, turn: str, old: int | None, worker: str, epoch: int, *, expired: bool, jumped: bool) -> Answer:
        found = self.turns.get(turn)
        if found is None or found.phase == "ended":
            self._free(turn)
            return ["GONE"]
        if old is None and not found.expired:
            return ["ALIVE"]
        if old is None and jumped:
            return ["JUMPED"]
        if old is not None and old != found.epoch:
            return ["CHANGED", found.epoch]
        self.published.append((f"w:{found.owner}", f"fenced {turn} {found.epoch}"))
        if found.phase == "claimed":
            self._free(turn)
            self._forget(turn)
            self.published.append((turn, "gone"))
            return ["DROPPED"]
        assert epoch > found.epoch
        if found.last and not self.logs.get(turn):
            found.phase, found.last, found.ending, found.outcome = "open", 0, None, None
        found.epoch, found.owner, found.expired = epoch, worker, expired
        self.highest = epoch
        self.published.append((turn, f"taken {epoch}"))
        data, count = found.ending or (None, None)
        number = None if count is None else str(count)
        stop, head, continues = found.stop, found.head, found.continues
        return ["OK", epoch, found.phase, stop, found.last, data, number, found.outcome, head, continues]

    def renew(self, turn: str, epoch: int, worker: str, *, expired: bool) -> Answer:
        found = self.turns.get(turn)
        if found is None:
            return ["GONE"]
        if self._is_foreign(found, epoch, worker):
            return ["FENCED"]
        if found.phase == "ended":
            return ["CLOSED"]
        found.expired = expired
        return ["OK", found.stop, self._count(turn, worker)]

    def status(self, turn: str) -> Answer:
        found = self.turns.get(turn)
        if found is None:
            return ["GONE"]
        return [found.phase, found.epoch, found.last, int(found.expired), found.outcome, found.continues]

    def find(self, mark: str) -> Answer:
        live = None if self.turn is None else self.head
        if self.turn is not None and mark in (self.turn, self.turn[:8]):
            return [live, live]
        named = (name for name in reversed(self.ended) if mark in (name, name[:8]) and name in self.turns)
        return [next((self.turns[name].head for name in named), None), live]

    def count(self, turn: str, worker: str, count: int) -> Answer:
        found = self.turns.get(turn)
        if found is None or found.phase == "ended":
            return ["GONE"]
        if count:
            self.readers.setdefault(turn, {})[worker] = count
        else:
            self.readers.get(turn, {}).pop(worker, None)
        self.published.append((f"w:{found.owner}", f"readers {turn} {self._count(turn, found.owner)}"))
        return ["OK"]

    def restore(
        self, turn: str, epoch: int, worker: str, head: str, continues: str, ids: Sequence[str], *, expired: bool
    ) -> Answer:
        found = self.turns.get(turn)
        if found is not None:
            return ["FENCED"] if self._is_foreign(found, epoch, worker) else ["OK", found.last]
        if self.highest > epoch:
            return ["FENCED"]
        if self.turn is not None and self.turn != turn:
            self.turns.pop(self.turn, None)
        self.turn, self.head, self.highest = turn, head, epoch
        self.turns[turn] = restored = _Turn(epoch, worker, head, expired=expired)
        restored.phase, restored.continues = "open", continues or None
        self.logs.pop(turn, None)
        self.used |= set(ids)
        self.published.append((turn, "open"))
        return ["OK", 0]

    def lose(self, turn: str) -> None:
        """Redis has forgotten the turn, but not its chat."""
        self.turns.pop(turn, None)

    def lose_log(self, turn: str) -> None:
        """Redis has forgotten what the turn said, but not the turn."""
        self.logs.pop(turn, None)

    def lose_all(self) -> None:
        self.__init__()

    def _is_foreign(self, found: _Turn, epoch: int, worker: str) -> bool:
        return found.epoch != epoch or found.owner != worker

    def _count(self, turn: str, owner: str) -> int:
        return sum(count for worker, count in self.readers.get(turn, {}).items() if worker != owner)

    def _free(self, turn: str) -> None:
        if self.turn == turn:
            self.turn = None

    def _forget(self, turn: str) -> None:
        self.turns.pop(turn, None)
        self.logs.pop(turn, None)
        self.readers.pop(turn, None)
