"""Our messages for a model against `convertToModelMessages` of every pinned release, for random messages of a chat."""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings

from judge import Judge
from promises import PINNED, V5, V6, V7
from same_json import as_json, strict
from support.soak import draws
from ui_messages import HISTORIES
from usechat.protocol.messages import Role, UIMessage, is_tool_call
from usechat.protocol.model_messages import to_model_messages

_Part: TypeAlias = dict[str, Any]

MANY: Final = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
ALL_V5: Final = tuple(client for client in PINNED if client.startswith("5."))
ALL_V6: Final = tuple(client for client in PINNED if client.startswith("6."))
FIRST_V7: Final = ("7.0.0", "7.0.31")
OLD: Final = tuple(client for client in PINNED if client not in (V5, V6, V7))


class Differs(NamedTuple):
    """How these clients differ from the newest: of which part they see something else, or what else they give.

    A change of a part with `refused` is for what the clients throw at: they are not given it either.
    """

    clients: Iterable[str]
    part: Callable[[_Part, Role], _Part] | None = None
    given: Callable[[_Part], _Part] | None = None
    refused: bool = False


def dropped(part: _Part, *fields: str) -> _Part:
    return {name: value for name, value in part.items() if name not in fields}


def without(*fields: str, kinds: tuple[str, ...] = (), roles: tuple[Role, ...] = ()) -> Callable[[_Part, Role], _Part]:
    def change(part: _Part, role: Role) -> _Part:
        if (kinds and part["type"] not in kinds) or (roles and role not in roles):
            return part
        return dropped(part, *fields)

    return change


def unknown(*kinds: str) -> Callable[[_Part, Role], _Part]:
    return lambda part, role: {"type": "unknown"} if part["type"] in kinds else part


def of_a_call(change: Callable[[_Part], _Part]) -> Callable[[_Part, Role], _Part]:
    return lambda part, role: change(part) if role == "assistant" and is_tool_call(part) else part


def as_unanswered(*states: str) -> Callable[[_Part, Role], _Part]:
    return of_a_call(lambda part: {**part, "state": "input-available"} if part["state"] in states else part)


def of_an_approval(*fields: str) -> Callable[[_Part, Role], _Part]:
    def change(part: _Part) -> _Part:
        approval = part.get("approval")
        return part if approval is None else {**part, "approval": dropped(approval, *fields)}

    return of_a_call(change)


def unfinished(part: _Part) -> _Part:
    return part if part["state"] in ("output-available", "output-error") else {"type": "unknown"}


def denied_without_approval(part: _Part) -> _Part:
    without_one = part["state"] == "output-denied" and part.get("approval") is None
    return {**part, "state": "input-available"} if without_one else part


def failed_with_metadata_of_the_result(part: _Part) -> _Part:
    fails = part["state"] == "output-error" and part.get("callProviderMetadata") is None
    return dropped(part, "resultProviderMetadata") if fails else part


def failed_with_null(part: _Part) -> _Part:
    fails = part["state"] == "output-error" and part.get("input") is None
    return dropped(part, "input") if fails else part


def answered_by_the_provider(part: _Part) -> _Part:
    return of_an_approval("approved")(part, "assistant") if part.get("providerExecuted") is True else part


def changed(kind: str, change: Callable[[_Part], _Part]) -> Callable[[_Part], _Part]:
    return lambda item: change(item) if item["type"] == kind else item


def data_is_the_url(item: _Part) -> _Part:
    return {**item, "data": item["data"]["url"]}


def of_6_0_0(item: _Part) -> _Part:
    denied = {"type": "error-text", "value": "Tool call execution denied."}
    return {**item, "output": {**denied, "value": "Tool execution denied."}} if item["output"] == denied else item


DIFFERENCES: Final = (
    # Parts and fields that are newer than the client.
    Differs((*ALL_V5, *ALL_V6), unknown("custom", "reasoning-file", "steering-message")),
    Differs(FIRST_V7, unknown("steering-message")),
    Differs((*ALL_V5, *ALL_V6), without("providerReference", kinds=("file",))),
    Differs((*ALL_V5, *ALL_V6), given=changed("file", data_is_the_url)),
    Differs((*ALL_V5, "6.0.0"), without("providerMetadata", kinds=("file",), roles=("assistant",))),
    Differs(("5.0.0",), without("providerMetadata", roles=("system", "user"))),
    Differs(("5.0.0",), without("filename", kinds=("file",), roles=("assistant",))),
    Differs(("5.0.0",), of_a_call(lambda part: dropped(part, "rawInput"))),
    Differs(("5.0.0", "5.0.92"), given=changed("tool-result", lambda item: dropped(item, "providerOptions"))),
    Differs((*ALL_V5, "6.0.0"), of_a_call(lambda part: dropped(part, "resultProviderMetadata"))),
    Differs(ALL_V5, without("providerExecuted", "rawInput", kinds=("dynamic-tool",))),
    Differs(OLD, without("dynamic", kinds=("dynamic-tool",))),
    # Approvals.
    Differs(ALL_V5, of_a_call(lambda part: dropped(part, "approval"))),
    Differs(ALL_V5, as_unanswered("output-denied")),
    Differs((*ALL_V5, *ALL_V6, *FIRST_V7), as_unanswered("approval-requested")),
    Differs((*ALL_V5, *ALL_V6), as_unanswered("approval-responded")),
    Differs(("6.0.0",), of_an_approval("signature")),
    Differs(("6.0.0", "6.0.230", *FIRST_V7), of_an_approval("inputSchemaInput")),
    Differs((*ALL_V6, *FIRST_V7), of_an_approval("requestReason")),
    Differs(ALL_V6, of_an_approval("isAutomatic")),
    Differs(("6.0.0",), of_a_call(answered_by_the_provider)),
    Differs(
        ("6.0.0",),
        given=changed("tool-approval-response", lambda item: dropped(item, "providerExecuted")),
    ),
    Differs(("6.0.0",), given=changed("tool-result", of_6_0_0)),
    # What the client throws at, or gives without sense.
    Differs(("5.0.0",), of_a_call(unfinished), refused=True),
    Differs(ALL_V5, of_a_call(failed_with_null), refused=True),
    Differs(("6.0.0",), of_a_call(denied_without_approval), refused=True),
    Differs(("6.0.230", *FIRST_V7), of_a_call(failed_with_metadata_of_the_result), refused=True),
)


def seen(client: str, messages: list[UIMessage], *, refused: bool) -> list[UIMessage]:
    changes = [row.part for row in DIFFERENCES if row.part and client in row.clients and row.refused == refused]

    def change(part: _Part, role: Role) -> _Part:
        for each in changes:
            part = each(part, role)
        return part

    return [UIMessage(one.id, one.role, [change(part, one.role) for part in one.parts]) for one in messages]


def expected(client: str, messages: list[UIMessage]) -> list[_Part]:
    converted = to_model_messages(seen(client, messages, refused=False))
    for difference in DIFFERENCES:
        if difference.given and client in difference.clients:
            for message in converted:
                if message["role"] != "system":
                    message["content"] = [difference.given(item) for item in message["content"]]
    return converted


def is_said(message: _Part) -> bool:
    """Older clients leave empty messages where a step has nothing for the model."""
    return message["role"] in ("system", "user") or message["content"] != []


@pytest.mark.parametrize("clients", [ALL_V5, ALL_V6, (*FIRST_V7, V7)], ids=["v5", "v6", "v7"])
def test_the_messages_for_a_model_are_those_of_every_release(judge: Judge, clients: tuple[str, ...]) -> None:
    @settings(MANY, max_examples=draws(60, 20))
    @given(HISTORIES)
    def check(messages: list[UIMessage]) -> None:
        for client in clients:
            history = seen(client, messages, refused=True)
            theirs = judge.model_messages([as_json(message) for message in history], [client])[client]
            assert "crash" not in theirs, (client, theirs)
            given = theirs["messages"] if client == V7 else [*filter(is_said, theirs["messages"])]
            assert strict(given) == strict(expected(client, history)), client

    check()


def test_where_the_sdk_throws_the_messages_are_given(judge: Judge) -> None:
    relative = {"type": "file", "mediaType": "image/png", "url": "/uploads/cat.png"}
    history = [UIMessage("m", "user", [relative])]
    thrown = judge.model_messages([as_json(message) for message in history], [V7])[V7]
    assert [crash["name"] for crash in thrown["crash"]] == ["TypeError"]
    data = {"type": "url", "url": "/uploads/cat.png"}
    assert to_model_messages(history) == [
        {"role": "user", "content": [{"type": "file", "mediaType": "image/png", "data": data}]}
    ]
