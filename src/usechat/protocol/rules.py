"""The rules of the UI message stream, by name: what each forbids and what to do instead.

Each rule has a witness in `conformance/test_rules.py`: a stream that breaks it, and a supported client that refuses the
stream or is left in a broken state. A rule with a `reason` has no witness and is advice.

Its `level` is what `usechat check` says about a breach. The stream is `refused` if a client throws, loses something or
posts again and again. It is `untidy` if a part stays streaming or the client's own validation refuses the message.
"""

from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec import UNSET, UnsetType

from usechat.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["RULES", "Level", "Rule", "local_error", "remote_error"]

Level: TypeAlias = Literal["refused", "untidy"]


class Rule(NamedTuple):
    meaning: str
    remedy: str
    level: Level = "refused"
    reason: str | UnsetType = UNSET


RULES: Final[dict[str, Rule]] = {
    "json": Rule(
        "An event that is not JSON.",
        "Send one JSON object in each event, and keep-alives as comments; NaN and Infinity are not JSON.",
    ),
    "no-chunks": Rule(
        "A body without a single event: the client shows no message and no error.",
        "Send server-sent events: `data:`, the chunk, and a blank line after each.",
    ),
    "event-cut-off": Rule(
        "An event at the end without its blank line: every client drops it.",
        "End each event with a blank line, also the last one.",
    ),
    "object": Rule("A chunk that is not a JSON object.", 'Send {"type": …}.'),
    "forbidden-key": Rule(
        "A key that the client's parser refuses.",
        "Rename the keys `__proto__` and `constructor.prototype`.",
    ),
    "unknown-type": Rule(
        "A chunk type that no client knows.",
        "Send a type of the protocol; for data of your own, `data-<name>` with a `data` field.",
    ),
    "shape": Rule(
        "A field that is missing, null or of the wrong type.",
        "Send every required field with a value of its type; leave an absent one out instead of null.",
    ),
    "unknown-field": Rule(
        "A field that the chunk's type does not have: releases before 5.0.217, 6.0.231 and 7.0.32 refuse the chunk.",
        "Leave it out, or send it in `messageMetadata` or in a `data-<name>` chunk.",
    ),
    "too-new": Rule(
        "A chunk type, field or value that is newer than the client.",
        "Use its older form, or pin a newer client.",
    ),
    "late-start": Rule(
        "A `start` that changes the id of a message that the page has written twice: the page shows two messages.",
        "Send `start` with the message id before everything else; a continued message keeps its id.",
    ),
    "after-error": Rule(
        "A chunk after `error`, which the client never reads. If it only ends something, the message is untidy.",
        "Close all parts and send everything before the `error`.",
    ),
    "after-end": Rule(
        "A chunk after `finish` or `abort`.",
        "Send everything before the last chunk.",
        "untidy",
        "The chat classes read on, but a server that stores the turn, or waits for `finish`, takes it for the end.",
    ),
    "part-not-open": Rule(
        "A delta or end for a text or reasoning part that is not open.",
        "Send the part's start first; `finish-step` closes all parts for older clients.",
    ),
    "part-open-twice": Rule(
        "A start for a part that is already open: the first one stays `streaming` for ever.",
        "Send the part's end first, or use another id.",
        "untidy",
    ),
    "part-left-open": Rule(
        "A step or message that ends while a text or reasoning part is open: it stays `streaming` for ever.",
        "Send the part's end first.",
        "untidy",
    ),
    "call-unknown": Rule(
        "A chunk for a tool call that the message does not have.",
        "Send `tool-input-start` or `tool-input-available` for it first.",
    ),
    "call-twice": Rule(
        "A tool call id that the message already has: older clients overwrite the first call.",
        "Give each call of a message an id of its own.",
    ),
    "call-order": Rule(
        "A tool chunk that does not follow from the state of its call.",
        "Follow the order input, approval, output; send nothing for a call that has ended.",
    ),
    "call-changed": Rule(
        "A tool call whose `dynamic`, or whose `toolName` while static, changes from one chunk to the next.",
        "Keep both the same on all chunks of a call.",
    ),
    "call-across-steps": Rule(
        "Input for a tool call that began in an earlier step: the newest clients make a second part of it.",
        "Send the whole input of a call in the step in which it began.",
        "untidy",
    ),
    "call-left-open": Rule(
        "A message that ends while the input of a tool call is still streaming.",
        "Send `tool-input-available`, `tool-input-error` or `tool-output-error` for it first.",
        "untidy",
    ),
    "call-invalid": Rule(
        "A tool call that ends in a form that the newest clients' own `validateUIMessages` refuses.",
        "Send the whole input before the output, and only a result that the answer to the approval allows.",
        "untidy",
    ),
    "approval-unknown": Rule(
        "An answer to an approval that was not requested.",
        "Send `tool-approval-request` with this id first.",
    ),
    "approval-twice": Rule(
        "An approval id that the message already has.",
        "Give each approval of a message an id of its own.",
        "untidy",
    ),
    "resubmits": Rule(
        "A last step in which every tool call has its result: pages that send automatically post again and again.",
        "Send `start-step` and then `message-metadata` with `{}`, which makes the page see it, before the last chunk.",
    ),
    "event-too-large": Rule(
        "An event that is larger than the reader allows.",
        "Send large values in parts, or by reference.",
        reason="It protects the memory of our own reader; a browser has no such limit.",
    ),
    "no-end": Rule(
        "A stream that stops without `finish`, `abort` or `error`.",
        "End every stream with one of the three.",
        "untidy",
        "The client takes what it has and reports success, so a truncated answer looks like a whole one.",
    ),
}


def local_error(rule: str, chunk: str, problem: str) -> LocalProtocolError:
    return LocalProtocolError(problem, chunk=chunk, rule=rule, remedy=RULES[rule].remedy)


def remote_error(rule: str, chunk: str, problem: str) -> RemoteProtocolError:
    return RemoteProtocolError(problem, chunk=chunk, rule=rule, remedy=RULES[rule].remedy)
