"""Many sockets of one session: each is shown the turn of its own prompt, and nobody else's."""

import random
import re
from collections.abc import Callable

import pytest

from support.session_model import Model, Prompt, Socket
from support.soak import SEED, draws
from usechat.protocol.chunks import Abort, Finish

USERS = ("ana", "bo")
CHANNELS = ("web:default", "slack:C1")
TEXTS = ("Hello", "Hello", "Deploy")


class Story:
    """A session in which everything happens at random, until all is over and read."""

    def __init__(self, seed: int, *, doubles: bool = False, strays: bool = False) -> None:
        self.model = Model(seed, doubles=doubles, strays=strays)
        self.draw = random.Random(seed)  # noqa: S311
        self.sending: list[Socket] = []
        actions: dict[Callable[[], None], int] = {
            self.connect: 8,
            self.send: 8,
            self.hear: 8,
            self.ask_elsewhere: 3,
            self.model.work: 30,
            self.model.switch_model: 2,
            self.model.flush_collected: 2,
            self.model.noise: 2,
            self.read_some: 25,
        }
        if strays:
            actions[self.model.stray] = 12
        self.mischief = False
        # What the system asks waits without a word: its place is not known when others come back or are dropped.
        if self.draw.random() < 0.4:
            actions[self.model.system_prompt] = 3
        else:
            actions |= {self.model.lose_runner: 2, self.model.find_runner: 5}
            self.mischief = self.draw.random() < 0.5
        # Which mode a gateway uses is one for all of its prompts.
        self.queue_mode = self.draw.choice(("followup", "followup", "followup", "collect"))
        if self.mischief:
            actions |= {self.model.abort: 1, self.model.clear_queue: 1}
        for action in self.draw.choices([*actions], [*actions.values()], k=self.draw.randrange(20, 160)):
            action()
        while self.sending:
            self.hear()
        self.model.flush_collected()
        self.model.find_runner()
        while self.model.running is not None or self.model.queue:
            self.model.work()
            self.read_some()
        for socket in self.model.sockets:
            while socket.inbox:
                socket.deliver()

    def connect(self) -> None:
        if len(self.model.sockets) < 8:
            text = self.draw.choice(TEXTS)
            if self.queue_mode == "collect":
                # Which of several equal ones was collected, nobody could tell.
                text += f" {len(self.model.sockets)}"
            self.model.connect(self.draw.choice(USERS), self.draw.choice(CHANNELS), text)

    def send(self) -> None:
        """A socket that has read its first frame sends its prompt, which the session hears later."""
        ready = [socket for socket in self.model.sockets if not socket.sent and socket.kinds]
        if ready:
            socket = self.draw.choice(ready)
            socket.sent = True
            socket.tracker.mark_sent()
            self.sending.append(socket)

    def hear(self) -> None:
        if self.sending:
            socket = self.sending.pop(self.draw.randrange(len(self.sending)))
            self.model.prompt(socket, self.queue_mode)

    def ask_elsewhere(self) -> None:
        author, mode = self.draw.choice((None, "cy")), "steer" if self.draw.random() < self.mischief / 3 else "followup"
        self.model.foreign_prompt(self.draw.choice(TEXTS), author, self.draw.choice(CHANNELS), mode)

    def read_some(self) -> None:
        for socket in self.model.sockets:
            for _ in range(min(len(socket.inbox), self.draw.randrange(6))):
                socket.deliver()
            if not socket.inbox:
                in_step(self.model, socket)


def in_step(model: Model, socket: Socket) -> None:
    """What a socket that has read everything takes for running, or for its place, is so."""
    own = claimed(model, socket)
    if socket.tracker.running:
        assert own is not None
        assert model.running is own
    if socket.tracker.position is not None:
        assert own is not None
        assert model.queue.index(own) + 1 == socket.tracker.position


def claimed(model: Model, socket: Socket) -> Prompt | None:
    return next((prompt for prompt in model.prompts if prompt.id == socket.tracker.echo_id), None)


def shown(socket: Socket) -> set[str]:
    """The prompts of whose answers something was shown."""
    return set(re.findall(r"<([^>]+)>", socket.read))


def holds(model: Model) -> None:
    taken: list[str] = []
    for socket in model.sockets:
        own = claimed(model, socket)
        if not socket.sent:
            assert (socket.chunks, own) == ([], None)
            continue
        assert own is not None
        assert own.channel == socket.channel
        assert socket.text in own.text.split("\n\n---\n\n")
        assert shown(socket) <= {own.id}
        assert socket.tracker.ended
        assert not socket.tracker.running
        assert socket.kinds.count("ended") == 1
        if own.end == "finish":
            assert any(socket.read.endswith(said) for said in own.said)
        assert isinstance(socket.chunks[-1], Finish if own.end == "finish" else Abort)
        if "---" not in own.text and own.sender is not None:
            assert own.author == socket.user
            taken.append(own.id)
    assert len(taken) == len(set(taken))


@pytest.mark.parametrize("block", range(2))
def test_each_socket_is_shown_its_own_turn(block: int) -> None:
    for number in range(draws(50, 24)):
        holds(Story(SEED + block * 1_000_000 + number).model)


def test_frames_that_come_twice_change_nothing() -> None:
    for number in range(draws(40, 25)):
        holds(Story(SEED + 9_000_000 + number, doubles=True).model)


@pytest.mark.parametrize("doubles", [False, True])
def test_frames_that_look_like_work_take_no_turn_away(*, doubles: bool) -> None:
    for number in range(draws(60, 25)):
        holds(Story(SEED + 5_000_000 + number, doubles=doubles, strays=True).model)
