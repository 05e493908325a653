"""What a prompt makes the agent do: its first word names the turn that is played."""

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

from usechat.ids import new_id
from usechat.session_agent.session import MODELS, Turn
from usechat.session_agent.sockets import FAULTS, FaultName, Frame

__all__ = ["PLAYS", "VOCABULARIES", "play"]

Play: TypeAlias = Callable[[Turn, str], Awaitable[None]]
VOCABULARIES: Final = ("v2", "both")

_ANYTHING: Final = re.compile(r".*", re.DOTALL)
_NUMBER: Final = re.compile(r"(\d{1,9}(\.\d{1,9})?)?")
_NOTHING: Final = re.compile(r"")
_CHILD: Final = "11111111-2222-4333-8444-555555555555"
_PIECE: Final = "x" * 16 * 1024
_NOISE: Final[tuple[Frame, ...]] = (
    {"type": "title", "title": "Noise"},
    {"type": "git-state", "data": {"branch": "main", "baseBranch": "main", "commitCount": 1}},
    {"type": "pr-created", "data": {"number": 1, "title": "Fix", "url": "https://example.com/pr/1", "state": "open"}},
    {"type": "files-changed", "files": [{"path": "a.ts", "status": "added", "additions": 3, "deletions": 0}]},
    {"type": "models", "models": MODELS},
    {"type": "status", "data": {"prCreating": True, "branch": "main"}},
    {"type": "toast", "title": "Noise"},
    {"type": "chunk", "content": "of another turn", "messageId": "other", "channelType": "slack", "channelId": "C1"},
    {"type": "never-heard-of", "data": {}},
)


async def play(turn: Turn) -> None:
    """Play the turn that the prompt names; a prompt that names none is answered in words."""
    content = turn.prompt.content
    word, _, rest = content.partition(" ")
    if word in VOCABULARIES:
        turn.vocabulary = word
        content = rest
        word, _, rest = content.partition(" ")
    found, takes = PLAYS.get(word, (None, _NOTHING))
    turn.status("thinking")
    await turn.pause()
    if found is not None and takes.fullmatch(rest):
        await found(turn, rest)
    else:
        await _answer(turn, f"{'Noted' if turn.prompt.author is None else 'You said'}: {content}")


async def _answer(turn: Turn, text: str) -> None:
    await turn.text(*re.findall(r"\S+\s*|\s+", text))
    turn.finish()


async def _tools(turn: Turn, _: str) -> None:
    await turn.text("Let me ", "look.")
    await turn.tool("prt_1", "bash", "pending", {})
    await turn.tool("prt_1", "bash", "running", {"command": "ls"})
    await turn.tool("prt_1", "bash", "completed", {"command": "ls"}, result="a.ts\nb.ts\n")
    await turn.text("Two files: ", "a.ts and b.ts.")
    turn.finish()


async def _broken_tool(turn: Turn, _: str) -> None:
    await turn.text("First.")
    await turn.tool("prt_1", "read", "running", {"filePath": "a"})
    await turn.tool("prt_1", "read", "completed", {"filePath": "a"}, result="A")
    await turn.text(" Second.")
    await turn.tool("prt_2", "read", "running", {"filePath": "b"})
    await turn.tool("prt_2", "read", "error", {"filePath": "b"}, error="ENOENT: b")
    await turn.text(" b is missing.")
    turn.finish()


async def _late_tool(turn: Turn, _: str) -> None:
    await turn.tool("prt_1", "wait_for_event", "completed")
    await turn.tool("prt_2", "bash", "running", {"command": "make"})
    await turn.text("It runs.")
    turn.finish()
    await turn.tool("prt_2", "bash", "completed", {"command": "make"}, result="")


async def _fail(turn: Turn, text: str) -> None:
    turn.fail(text or "ProviderAuthError: invalid api key")


async def _fail_late(turn: Turn, text: str) -> None:
    await turn.text("It begins ", "well.")
    turn.finish("error", error=text or "Overloaded")


async def _silent(turn: Turn, _: str) -> None:
    turn.begin()


async def _empty(turn: Turn, _: str) -> None:
    turn.begin()
    turn.finish()


async def _final(turn: Turn, _: str) -> None:
    turn.begin()
    turn.finish(final="Only the end has text.")


async def _cancel(turn: Turn, _: str) -> None:
    await turn.text("Work")
    turn.finish("canceled", error="OpenCode restarting for config update")
    turn.completes = False


async def _failover(turn: Turn, _: str) -> None:
    await turn.text("The first model ", "says")
    switched = {"messageId": new_id(), "fromModel": "usechat/first", "toModel": "usechat/second"}
    turn.session.broadcast({"type": "model-switched", **switched, "reason": "Overloaded"})
    turn.begin_again()
    await turn.text("The second model ", "answers.")
    turn.finish()


async def _lost(turn: Turn, _: str) -> None:
    await turn.text("The runner ", "goes")
    session = turn.session
    session.lose_runner(turn.prompt)
    await turn.pause()
    session.find_runner()
    turn.status("idle")
    session.busy = session.dequeue() is not None
    turn.begin_again()
    turn.status("thinking")
    await turn.text("The runner ", "is back.")
    turn.finish()


async def _question(turn: Turn, text: str) -> None:
    text = text or "Which environment?"
    options = ["staging", "production"]
    turn.status("idle")
    asked = [{"question": text, "options": [{"label": option} for option in options]}]
    await turn.tool("prt_q", "question", "running", {"questions": asked}, quiet=True)
    answer = await turn.ask(text, options)
    if answer is None:
        await turn.text("No answer, ", "stopping.")
    else:
        await turn.tool("prt_q", "question", "completed", {"questions": []}, result=f"User has answered: {answer}")
        await turn.text("You answered: ", f"{answer}.")
    turn.finish()


async def _slow(turn: Turn, seconds: str) -> None:
    for number in range(10):
        await turn.text(f"{number} ")
        await turn.pause(float(seconds or 1) / 10)
    turn.finish()


async def _hang(turn: Turn, _: str) -> None:
    await turn.text("I wait")
    await turn.session.released.wait()
    turn.session.released.clear()
    await turn.text(" no more.")
    turn.finish()


async def _long(turn: Turn, count: str) -> None:
    for number in range(int(float(count or 1000))):
        await turn.text(f"{number} ")
    turn.finish()


async def _flood(turn: Turn, megabytes: str) -> None:
    for _ in range(int(float(megabytes or 64) * 64)):
        await turn.text(_PIECE, kept=False)
    turn.finish()


async def _child(turn: Turn, _: str) -> None:
    args = {"task": "fix lint", "workspace": "demo"}
    await turn.tool("prt_1", "spawn_session", "running", args)
    turn.session.broadcast({"type": "child-session", "childSessionId": _CHILD, "title": "fix lint"})
    await turn.tool("prt_1", "spawn_session", "completed", args, result=f"Child session spawned: {_CHILD}")
    await turn.text("Started ", "a helper.")
    turn.finish()
    turn.afterwards = f"Child session event: {_CHILD} is idle."


async def _noise(turn: Turn, _: str) -> None:
    await turn.text("Much ")
    for frame in _NOISE:
        turn.session.broadcast(frame)
    turn.session.say_system("Screenshot", {"type": "screenshot", "data": "iVBORw0KGgo="})
    await turn.text("noise.")
    turn.finish()


async def _hibernate(turn: Turn, _: str) -> None:
    await _answer(turn, "The next prompt wakes me.")
    turn.leaves = "hibernated"


async def _terminate(turn: Turn, _: str) -> None:
    await turn.text("That was ", "all")
    turn.leaves = "terminated"
    turn.completes = False


async def _strike(turn: Turn, _: str, *, fault: FaultName) -> None:
    await turn.text("Before. ")
    if turn.prompt.socket is not None:
        turn.prompt.socket.strike(fault)
    await turn.text("After.")
    turn.finish()


PLAYS: Final[dict[str, tuple[Play, re.Pattern[str]]]] = {
    "tools": (_tools, _NOTHING),
    "broken-tool": (_broken_tool, _NOTHING),
    "late-tool": (_late_tool, _NOTHING),
    "fail": (_fail, _ANYTHING),
    "fail-late": (_fail_late, _ANYTHING),
    "silent": (_silent, _NOTHING),
    "empty": (_empty, _NOTHING),
    "final": (_final, _NOTHING),
    "cancel": (_cancel, _NOTHING),
    "failover": (_failover, _NOTHING),
    "lost": (_lost, _NOTHING),
    "question": (_question, _ANYTHING),
    "slow": (_slow, _NUMBER),
    "hang": (_hang, _NOTHING),
    "long": (_long, _NUMBER),
    "child": (_child, _NOTHING),
    "noise": (_noise, _NOTHING),
    "hibernate": (_hibernate, _NOTHING),
    "terminate": (_terminate, _NOTHING),
    **{fault: (partial(_strike, fault=fault), _NOTHING) for fault in FAULTS},
    "flood": (_flood, _NUMBER),
}
