"""Judges the records of a run, offline: what must hold of every turn, whatever happened to it."""

import math
from collections import Counter
from typing import Any, Final

import msgspec

from followers import Frame
from pages import known_to
from runs import Record, Shown
from same_json import as_json, strict
from speaker import Note
from usechat.testing import assert_legal, collect

__all__ = ["OUTCOMES", "problems", "start_of", "terminal"]

# What ends a stream, and what `on_end` is told then.
OUTCOMES: Final = {"finish": {"done"}, "abort": {"stopped"}, "error": {"lost", "error"}}
_DONE: Final = b"data: [DONE]"


def problems(record: Record, notes: list[Note]) -> list[str]:
    """What is wrong with the turn."""
    return [f"seed {record.script.seed}: {found}" for found in _found(record, notes)]


def terminal(record: Record) -> str:
    """The type of the chunk that ended the turn, as its first raw reader saw it."""
    events = [frame.event for frame in max(record.read, key=len)]
    return "" if not events else _type(events[-1])


def start_of(record: Record) -> str:
    """The id of the message, which the first chunk tells."""
    events = [frame.event for frame in max(record.read, key=len)]
    return str(collect(events[0] + b"\n\n")[0]["messageId"]) if events else ""


def _found(record: Record, notes: list[Note]) -> list[str]:
    if _was_denied(record):
        return [f"a reader was told that there is no such turn: {[len(read) for read in record.read]} frames"]
    if any(end is None and gone is None for end, gone in zip(record.ends, record.gone, strict=True)):
        return [f"hung: {[len(read) for read in record.read]} frames, {record.ends}, {record.doing}"]
    log = [frame.event for frame in next(read for read, end in zip(record.read, record.ends, strict=True) if end)]
    found = _sequence(record, log)
    if found:
        return found
    types = [_type(event) for event in log]
    closing = [name for name in types if name in OUTCOMES]
    if closing != types[-1:] or not closing:
        found.append(f"ended with {closing}, last {types[-3:]}")
    elif types[-1] not in record.expected.ends:
        found.append(f"ended with {types[-1]}, not {sorted(record.expected.ends)}")
    return found or [*_message(record, log), *_once(record, log, notes)]


def _was_denied(record: Record) -> bool:
    """Whether a reader was told that there is no such turn: right only after an end that Redis has forgotten."""
    over = min((end for end in record.ends if end is not None), default=math.inf)
    return any(gone is not None and (not record.expected.forgets or gone < over) for gone in record.gone)


def _sequence(record: Record, log: list[bytes]) -> list[str]:
    found = list[str]()
    for number, read in enumerate(record.read):
        if record.gone[number] is not None:
            # It has a part, and the rest in the message.
            read = [*read, *(Frame(at, event, 0.0) for at, event in enumerate(log, 1) if at > len(read))]
        indices = [frame.index for frame in read]
        if indices != list(range(1, len(log) + 1)):
            found.append(f"reader {number} has gaps or doubles: {_short(indices)} of {len(log)}")
        elif [frame.event for frame in read] != log:
            found.append(f"reader {number} read other bytes")
    for number, kept in enumerate(record.logs):
        if kept is not None and kept != [*log, _DONE]:
            found.append(f"the log of worker {number} is another: {len(kept)} events, read were {len(log) + 1}")
    return found


def _message(record: Record, log: list[bytes]) -> list[str]:
    try:
        message = assert_legal(b"".join(event + b"\n\n" for event in [*log, _DONE]))
    except AssertionError as error:
        return [f"not legal: {error}"]
    told, found = as_json(message), list[str]()
    for number, kept in enumerate(record.kept):
        own = [each for each in kept if each["id"] == message.id]
        # An answer without a single part is not stored.
        if strict(own) != strict([told] if message.parts else []):
            found.append(f"worker {number} keeps {list(map(_brief, own))} instead of {_brief(told)}")
    for page in record.pages if not found else []:
        found += _shown(record, page, told)
    # An answer that finished by itself has said everything, also where another end would have been right.
    is_whole = record.expected.whole or _type(log[-1]) == "finish"
    if is_whole and record.script.last not in message.text:
        found.append("the message is not whole")
    return found


def _shown(record: Record, page: Shown, told: dict[str, Any]) -> list[str]:
    """What is wrong with a page, which shows the chat as it is kept, or its last message if others write to it, too."""
    if record.shared and not told["parts"]:
        return []
    wanted = [known_to(page.client, each) for each in ([told] if record.shared else record.kept[0])]
    # An answer that said nothing is shown without a part, and not kept.
    messages = [known_to(page.client, message) for message in page.view.messages if message["parts"]]
    shown = messages[-1:] if record.shared else messages
    if strict(shown) == strict(wanted):
        return []
    how = f"{page.client}, {'react' if page.react else 'stock'}, {page.reloads} reloads, {page.view.status}"
    last = f"{_brief(shown[-1])} instead of {_brief(wanted[-1])}"
    return [f"a page ({how}, {page.view.error}, {page.view.statuses}) shows {last}"]


def _once(record: Record, log: list[bytes], notes: list[Note]) -> list[str]:
    message = start_of(record)
    outcomes = [note.detail for note in notes if note.what == "ended" and note.subject == message]
    began = Counter(note.subject for note in notes if note.what == "began")[f"{record.chat} {record.script.seed}"]
    found = list[str]()
    if len(outcomes) != 1 or outcomes[0] not in OUTCOMES[_type(log[-1])]:
        found.append(f"on_end was told {outcomes} of a turn that ended with {_type(log[-1])}")
    is_aborted = _type(log[-1]) == "abort"
    # A turn may be stopped before its agent has begun.
    if began != 1 and not (is_aborted and began == 0):
        found.append(f"the agent ran {began} times")
    ended = {note.what for note in notes if note.subject == f"{record.chat} {record.script.seed}"}
    if is_aborted and began and not ended & {"cancelled", "said all"}:
        found.append("the agent was not cancelled")
    return found


def _type(event: bytes) -> str:
    return msgspec.json.decode(event.partition(b"data: ")[2])["type"]


def _short(indices: list[int]) -> str:
    wrong = [at for at, index in enumerate(indices) if index != at + 1]
    return (
        f"{len(indices)} frames, wrong from {wrong[0]}: {indices[wrong[0] - 2 : wrong[0] + 3]}"
        if wrong
        else str(len(indices))
    )


def _brief(message: Any) -> str:
    if not message:
        return "none"
    text = msgspec.json.encode(message["parts"]).decode()
    return (
        f"{message['role']} {message['id']} with {len(message['parts'])} parts, {len(text)} characters, …{text[-160:]}"
    )
