import logging
from typing import Any

import pytest
from msgspec import structs

from usechat.errors import LocalProtocolError, RequestError
from usechat.protocol.chunks import ToolApprovalRequest, ToolApprovalResponse
from usechat.protocol.messages import UIMessage
from usechat.protocol.writer import MessageWriter
from usechat.server.admission import ApprovalSigner, AskedCall, signed_approval_ids

SECRET = "0123456789abcdef0123456789abcdef"  # noqa: S105
CALL = AskedCall("chat", "ann", "call", "rm", {"file": "a", "n": [1, 2**60]})
OPEN = "No open tool call or approval matches this answer. Reload the chat."


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def signer(clock: Clock) -> ApprovalSigner:
    return ApprovalSigner(SECRET, 60, now=clock)


def refusal(signer: ApprovalSigner, signed_id: str, call: AskedCall = CALL) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        signer.verify(signed_id, call)
    return caught.value.status, str(caught.value)


@pytest.mark.parametrize("approval_id", ["p", "", "a.b", "interrupt:0", "é 😀"])
def test_a_signed_id_gives_the_id_again(signer: ApprovalSigner, approval_id: str) -> None:
    signed = signer.sign(approval_id, CALL)
    assert signed.startswith(f"{approval_id}.1060000.")
    assert signer.verify(signed, CALL) == approval_id


def test_processes_with_one_secret_know_each_others_approvals(signer: ApprovalSigner, clock: Clock) -> None:
    other = ApprovalSigner(SECRET, 60, now=clock)
    assert other.verify(signer.sign("p", CALL), CALL) == "p"
    stranger = ApprovalSigner("f" * 32, 60, now=clock)
    assert refusal(stranger, signer.sign("p", CALL)) == (409, OPEN)


def test_the_input_may_come_back_as_javascript_writes_it(signer: ApprovalSigner) -> None:
    returned = structs.replace(CALL, input={"n": [1.0, 1152921504606847000], "file": "a"})
    assert signer.verify(signer.sign("p", CALL), returned) == "p"


@pytest.mark.parametrize(
    "change",
    [
        {"chat": "another"},
        {"owner": "bob"},
        {"owner": ""},
        {"call_id": "another"},
        {"tool": "ls"},
        {"input": {"file": "b", "n": [1, 2**60]}},
        {"input": None},
        # Nothing may move from one field to the next.
        {"chat": "chatann", "owner": ""},
        {"chat": 'chat","ann'},
    ],
)
def test_an_approval_is_for_one_call_of_one_user_in_one_chat(signer: ApprovalSigner, change: dict[str, Any]) -> None:
    assert refusal(signer, signer.sign("p", CALL), structs.replace(CALL, **change)) == (409, OPEN)


def test_a_signed_id_cannot_be_changed_or_made_up(signer: ApprovalSigner) -> None:
    signed = signer.sign("p", CALL)
    approval_id, expiry, signature = signed.split(".")
    forged = [
        approval_id,
        f"q.{expiry}.{signature}",
        f"p.9999999999999.{signature}",
        f"p.{expiry}.{signature[:-1]}",
        f"p.{expiry}.{signature}=",
        f"p.{expiry}.",
        f"p..{signature}",
        f"p.x.{signature}",
        signature,
        f".{signed}",
        f"{signed}.",
        f"p.{expiry}.é",
        "",
        "..",
    ]
    assert [refusal(signer, wrong) for wrong in forged] == [(409, OPEN)] * len(forged)


def test_an_approval_expires(signer: ApprovalSigner, clock: Clock) -> None:
    signed = signer.sign("p", CALL)
    clock.now += 59.9
    assert signer.verify(signed, CALL) == "p"
    clock.now += 0.1
    assert refusal(signer, signed) == (409, "This approval has expired, so nothing was done.")


def test_an_approval_counts_once(signer: ApprovalSigner, clock: Clock) -> None:
    signed = signer.sign("p", CALL)
    signer.use(signed)
    assert refusal(signer, signed) == (409, "This approval has already been answered.")
    clock.now += 0.001
    again = signer.sign("p", CALL)
    assert signer.verify(again, CALL) == "p"


def test_the_last_100_000_answers_are_remembered(signer: ApprovalSigner) -> None:
    signed = signer.sign("p", CALL)
    signer.use(signed)
    for number in range(99_999):
        signer.use(str(number))
    assert refusal(signer, signed) == (409, "This approval has already been answered.")
    signer.use("one more")
    assert signer.verify(signed, CALL) == "p"


@pytest.mark.parametrize("secret", ["", "x" * 31, "é" * 15])
def test_a_short_secret_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match=r"^The approval secret must have at least 32 bytes\.$"):
        ApprovalSigner(secret, 60)


def test_without_a_secret_each_process_has_one_of_its_own_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    signer, other = ApprovalSigner(None, 60), ApprovalSigner(None, 60)
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.WARNING]
    assert "set approval_secret, or USECHAT_SECRET for usechat serve" in caplog.text
    signed = signer.sign("p", CALL)
    assert signer.verify(signed, CALL) == "p"
    assert refusal(other, signed) == (409, OPEN)


def writer(signer: ApprovalSigner, continues: UIMessage | None = None) -> MessageWriter:
    return MessageWriter(
        "m",
        new_id=lambda: "new",
        client="v7",
        continues=continues,
        value_limit=1000,
        approval_id=signed_approval_ids(signer, "chat", "ann"),
    )


def asked(write: MessageWriter, **options: str) -> str:
    [request] = write.approval_request("call", **options)
    assert isinstance(request, ToolApprovalRequest)
    return request.approval_id


def test_a_writer_signs_the_input_that_it_showed(signer: ApprovalSigner) -> None:
    write = writer(signer)
    write.tool_input_start("call", "rm")
    write.tool_input("call", "rm", {"file": "a", "__proto__": 1})
    shown = structs.replace(CALL, input={"file": "a", "_proto_": 1})
    assert signer.verify(asked(write), shown) == "new"
    assert signer.verify(asked(write, approval_id="p"), shown) == "p"


def test_a_writer_signs_for_a_call_of_the_message_that_it_continues(signer: ApprovalSigner) -> None:
    part = {"type": "tool-rm", "toolCallId": "call", "state": "input-available", "input": CALL.input}
    data: dict[str, Any] = {"type": "data-x", "toolCallId": [], "data": 1}
    write = writer(signer, UIMessage("m", "assistant", [data, part]))
    write.start()
    assert signer.verify(asked(write, approval_id="p"), CALL) == "p"


def test_an_agent_goes_on_using_its_own_id(signer: ApprovalSigner) -> None:
    write = writer(signer)
    write.tool_input("call", "rm", CALL.input)
    signed = asked(write, approval_id="p")
    approved = [ToolApprovalResponse(signed, approved=True)]
    assert write.send(ToolApprovalResponse("p", approved=True)) == approved
    assert write.send(ToolApprovalResponse(signed, approved=True)) == approved


def test_what_no_client_could_send_back_is_not_asked(signer: ApprovalSigner) -> None:
    write = writer(signer)
    write.tool_input("call", "rm", 1)
    with pytest.raises(LocalProtocolError, match=r"^The id of an approval on the wire must be a string of 1 to"):
        write.approval_request("call", approval_id="x" * 500)
    with pytest.raises(LocalProtocolError, match="which is not known"):
        write.approval_request("another")
