"""Two messages that come to one chat at the same time, on two workers."""

import secrets
from collections import defaultdict

from cluster import Cluster
from rows import Batch, Row, scripts
from runs import Expected, Record, Run, Stage
from speaker import Note, Script, script_text
from verdicts import terminal

__all__ = ["POSTS_REJECT", "POSTS_REPLACE"]


async def _prepare_replace(cluster: Cluster, lease: float) -> None:
    await cluster.start(lease=lease, conflict="replace")


async def _prepare_reject(cluster: Cluster, lease: float) -> None:
    await cluster.start(lease=lease, conflict="reject")


async def _send_both(stage: Stage, pair: tuple[Script, Script]) -> list[tuple[Run, int]]:
    """Send both scripts to one chat, each from a page at another worker; and the statuses that they got."""
    cluster, chat = stage.cluster, f"shared-{pair[0].seed}-{secrets.token_hex(4)}"
    ports = stage.draw.sample(cluster.ports, 2)
    runs = [
        Run(stage, script, port, Expected.of("finish", "abort"), chat) for script, port in zip(pair, ports, strict=True)
    ]
    pages = [await run.open(run.port, []) for run in runs]
    texts = [script_text(run.script) for run in runs]

    def send() -> None:
        for page, text in zip(pages, texts, strict=True):
            page.send(text)

    await cluster.ask_page(send)
    sent = list[tuple[Run, int]]()
    for run, page in zip(runs, pages, strict=True):
        run.shared = True
        status, run.turn = await run.answered(page)
        sent.append((run, status))
    return sent


async def _play(stage: Stage, count: int, wanted: list[int]) -> tuple[Batch, list[list[Run]]]:
    batch, chats, problems = Batch(faults=count, runs=count), list[list[Run]](), list[str]()
    # The other is to come while it runs.
    texts = scripts(stage.draw, 2 * count, pieces=60, waits=True)
    for pair in zip(texts[::2], texts[1::2], strict=True):
        sent = await _send_both(stage, pair)
        if sorted(status for _, status in sent) != wanted:
            problems.append(f"seed {pair[0].seed}: the answers were {[status for _, status in sent]}")
        for run, _ in sent:
            run.let_go()
        runs = [run for run, status in sent if status == 200]
        for run in runs:
            run.follow(stage.cluster.ports)
            run.follow(stage.cluster.ports[::-1])
        stage.runs += runs
        chats.append(runs)

    def judge(records: list[Record], notes: list[Note]) -> list[str]:
        return [*problems, *_judge(records, notes, len(wanted) if wanted[-1] == 200 else 1)]

    batch.judge = judge
    return batch, chats


def _judge(records: list[Record], notes: list[Note], answers: int) -> list[str]:
    """Of the turns of a chat one finished and the others were aborted, never two at a time, and nothing is lost."""
    found, chats = list[str](), defaultdict[str, list[Record]](list)
    for record in records:
        chats[record.chat].append(record)
    for chat, some in chats.items():
        ends = sorted(map(terminal, some))
        if ends != ["abort", "finish"][2 - answers :]:
            found.append(f"chat {chat}: the turns ended with {ends}")
        kept = some[0].kept[0]
        texts = [message["parts"][0]["text"] for message in kept if message["role"] == "user"]
        if sorted(texts) != sorted(script_text(record.script) for record in some):
            found.append(f"chat {chat}: the questions kept are {texts}")
        found += _owners(chat, notes)
    return found


def _owners(chat: str, notes: list[Note]) -> list[str]:
    running = set[str]()
    for note in sorted((note for note in notes if note.subject.startswith(f"{chat} ")), key=lambda note: note.at):
        if note.what == "began":
            if running:
                return [f"chat {chat}: {note.subject} began while {running} ran"]
            running.add(note.subject)
        elif note.what in ("cancelled", "said all"):
            running.discard(note.subject)
    return []


async def _replace(stage: Stage, count: int) -> Batch:
    batch, _ = await _play(stage, count, [200, 200])
    return batch


async def _reject(stage: Stage, count: int) -> Batch:
    batch, _ = await _play(stage, count, [200, 409])
    return batch


POSTS_REPLACE = Row(
    "posts-replace", "two POSTs for one chat at once on two workers, replace", 100, 5, _prepare_replace, _replace
)
POSTS_REJECT = Row(
    "posts-reject", "two POSTs for one chat at once on two workers, reject", 100, 5, _prepare_reject, _reject
)
