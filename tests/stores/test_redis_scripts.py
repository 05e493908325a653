"""The scripts that Redis runs as one, against what they do in plain Python."""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stores.scripts_model import ScriptsModel
from support.hang import HANG_SECONDS
from support.redis_server import RedisServer
from support.soak import draws
from usechat.stores.redis import scripts
from usechat.stores.redis.scripts import Script

_CHAT, _WORKERS = "c", "w:"
_LONG = 10**15
_turns, _workers, _expired = st.sampled_from(["t1", "t2", "t3"]), st.sampled_from(["a", "b"]), st.booleans()
_indices, _which = st.integers(0, 4), st.integers(0, 2)
_ids = st.lists(st.sampled_from("xy"), unique=True)


class _Scripts(RuleBasedStateMachine):
    """Each rule runs one script in Redis and in the model; an epoch is mostly the turn's own, and else an older one."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self._client = self.server.client()
        self._client.flushall()
        self._heard = self._client.pubsub()
        self._heard.psubscribe("*")
        self._heard.get_message(timeout=HANG_SECONDS)
        self._model = ScriptsModel()
        self._epochs = [1]

    def teardown(self) -> None:
        self._heard.close()
        self._client.close()

    @rule(turn=_turns, worker=_workers, expired=_expired)
    def claim(self, turn: str, worker: str, expired: bool) -> None:
        if turn not in self._model.turns or self._model.turn == turn:
            answer = self._do(scripts.CLAIM, [_CHAT, _key(turn)], turn, worker, _lease(expired), "h" + turn, _LONG)
            epoch = self._learn(answer[1]) if answer[0] == "OK" else 0
            self._same(answer, self._model.claim(turn, worker, "h" + turn, epoch, expired=expired))

    @rule(turn=_turns, which=_which, worker=_workers, continues=st.sampled_from(["", "m"]), ids=_ids)
    def open(self, turn: str, which: int, worker: str, continues: str, ids: list[str]) -> None:
        epoch = self._epoch(turn, which)
        answer = self._do(scripts.OPEN, [_key(turn), f"{_CHAT}:s"], epoch, worker, continues, _LONG, *ids)
        self._same(answer, self._model.open(turn, epoch, worker, continues, ids))

    @rule(turn=_turns, which=_which, worker=_workers, after=_indices, more=st.integers(1, 3))
    def append(self, turn: str, which: int, worker: str, after: int, more: int) -> None:
        epoch, last, data = self._epoch(turn, which), after + more, f"f{after}-{more}"
        answer = self._do(scripts.APPEND, [_key(turn), _key(turn) + ":l"], epoch, worker, after, last, data)
        self._same(answer, self._model.append(turn, epoch, worker, after, last, data))

    @rule(turn=_turns, which=_which, worker=_workers, after=_indices, count=st.integers(0, 2))
    def seal(self, turn: str, which: int, worker: str, after: int, count: int) -> None:
        epoch, data = self._epoch(turn, which), "z" * count
        answer = self._do(scripts.SEAL, [_key(turn)], epoch, worker, after, data, count, "done")
        self._same(answer, self._model.seal(turn, epoch, worker, after, data, count, "done"))

    @rule(
        turn=_turns,
        which=st.integers(0, 3),
        worker=_workers,
        phase=st.sampled_from(["", "sealed"]),
        size=st.integers(0, 9),
    )
    def release(self, turn: str, which: int, worker: str, phase: str, size: int) -> None:
        epoch = None if which == 3 else self._epoch(turn, which)
        keys = [_CHAT, _key(turn), _key(turn) + ":l", f"{_CHAT}:t", _key(turn) + ":r"]
        answer = self._do(scripts.RELEASE, keys, turn, "" if epoch is None else epoch, worker, _LONG, 2, 9, phase, size)
        self._same(answer, self._model.release(turn, epoch, worker, 2, 9, phase, size))

    @rule(turn=_turns, why=st.sampled_from(["stopped", "left"]))
    def stop(self, turn: str, why: str) -> None:
        self._same(self._do(scripts.STOP, [_key(turn)], turn, why, _WORKERS), self._model.stop(turn, why))

    @rule(turn=_turns, which=st.integers(0, 3), worker=_workers, expired=_expired, jumped=st.booleans())
    def take_over(self, turn: str, which: int, worker: str, expired: bool, jumped: bool) -> None:
        old = None if which == 3 else self._epoch(turn, which)
        keys = [_CHAT, _key(turn), _key(turn) + ":l", _key(turn) + ":r"]
        possible = (0, 0) if jumped else (0, 10 * _LONG)
        answer = self._do(
            scripts.TAKE_OVER, keys, turn, "" if old is None else old, worker, _lease(expired), _WORKERS, *possible
        )
        epoch = self._learn(answer[1]) if answer[0] == "OK" else 0
        # Its reply has the time as well.
        reply = answer[:1] if answer[0] == "JUMPED" else answer
        self._same(reply, self._model.take_over(turn, old, worker, epoch, expired=expired, jumped=jumped))

    @rule(turn=_turns, which=_which, worker=_workers, expired=_expired)
    def renew(self, turn: str, which: int, worker: str, expired: bool) -> None:
        epoch = self._epoch(turn, which)
        keys = [_CHAT, _key(turn), _key(turn) + ":l", _key(turn) + ":r"]
        answer = self._do(scripts.RENEW, keys, epoch, worker, _lease(expired), _LONG)
        self._same(answer, self._model.renew(turn, epoch, worker, expired=expired))

    @rule(turn=_turns, worker=_workers, count=st.integers(0, 2))
    def count(self, turn: str, worker: str, count: int) -> None:
        answer = self._do(scripts.COUNT, [_key(turn), _key(turn) + ":r"], turn, worker, count, _LONG, _WORKERS)
        self._same(answer, self._model.count(turn, worker, count))

    @rule(turn=_turns, which=_which, worker=_workers, continues=st.sampled_from(["", "m"]), ids=_ids, expired=_expired)
    def restore(self, turn: str, which: int, worker: str, continues: str, ids: list[str], expired: bool) -> None:
        epoch = self._epoch(turn, which)
        keys, kept = [_CHAT, _key(turn), f"{_CHAT}:s"], (_LONG, _LONG)
        answer = self._do(
            scripts.RESTORE, keys, turn, epoch, worker, _lease(expired), "h" + turn, continues, *kept, *ids
        )
        self._same(answer, self._model.restore(turn, epoch, worker, "h" + turn, continues, ids, expired=expired))

    @rule(turn=_turns, what=st.sampled_from(["turn", "turn", "log", "everything"]))
    def lose(self, turn: str, what: str) -> None:
        if what == "everything":
            self._client.flushall()
            self._model.lose_all()
        elif what == "log":
            self._client.delete(_key(turn) + ":l")
            self._model.lose_log(turn)
        else:
            self._client.delete(_key(turn))
            self._model.lose(turn)

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        model, client = self._model, self._client
        for turn in ("t1", "t2", "t3"):
            self._same(self._do(scripts.STATUS, [_key(turn)]), model.status(turn))
            log = [(int(id_.split(b"-")[0]), entry[b"d"].decode()) for id_, entry in client.xrange(_key(turn) + ":l")]
            if turn in model.turns:
                assert log == model.logs.get(turn, [])
        for mark in ("", "t1", "t2", "t3"):
            self._same(self._do(scripts.FIND, [_CHAT, f"{_CHAT}:t"], mark), model.find(mark))
        held = client.hget(_CHAT, "t")
        assert (None if held is None else held.decode()) == model.turn
        assert [name.decode() for name in client.zrange(f"{_CHAT}:t", 0, -1)] == model.ended
        assert {id_.decode() for id_ in client.smembers(f"{_CHAT}:s")} == model.used
        assert self._published() == model.published
        model.published = []

    def _do(self, script: Script, keys: Sequence[str], *values: object) -> list[Any]:
        return [_plain(part) for part in self._client.eval(script.source, len(keys), *keys, *map(str, values))]

    def _same(self, answer: list[Any], expected: list[Any]) -> None:
        assert [str(part) for part in answer] == [str(part) for part in expected]

    def _learn(self, epoch: str) -> int:
        self._epochs.append(int(epoch))
        return int(epoch)

    def _epoch(self, turn: str, which: int) -> int:
        found = self._model.turns.get(turn)
        return self._epochs[-1 - which % len(self._epochs)] if found is None or which else found.epoch

    def _published(self) -> list[tuple[str, str]]:
        self._client.publish("over", "")
        heard = list[tuple[str, str]]()
        while (message := self._heard.get_message(timeout=HANG_SECONDS))["channel"] != b"over":
            heard.append((message["channel"].decode().removeprefix(f"{_CHAT}:"), message["data"].decode()))
        return heard


def _key(turn: str) -> str:
    return f"{_CHAT}:{turn}"


def _lease(expired: bool) -> int:
    return -1 if expired else _LONG


def _plain(part: Any) -> Any:
    return part.decode() if isinstance(part, bytes) else part


def test_the_scripts_do_what_their_model_does(either_server: RedisServer) -> None:
    class Scripts(_Scripts):
        server = either_server

    Scripts.TestCase.settings = settings(
        max_examples=draws(12, 100), stateful_step_count=40, report_multiple_bugs=False
    )
    Scripts.TestCase().runTest()
