from collections.abc import Callable
from typing import Any

import pytest

from usechat.errors import LocalProtocolError
from usechat.protocol.chunks import (
    Start,
    StartStep,
    ToolApprovalRequest,
    ToolApprovalResponse,
    ToolInputAvailable,
    ToolOutputAvailable,
)
from usechat.protocol.messages import UIMessage
from usechat.protocol.state import Call
from usechat.protocol.writer import MessageWriter


def spelled(approval_id: str, call: Call, shown: Any) -> str:
    return f"{approval_id}/{call.id}/{call.name}/{shown}"


def asking(new_id: Callable[[], str], continues: UIMessage | None = None) -> MessageWriter:
    return MessageWriter("m", new_id=new_id, client="latest", continues=continues, approval_id=spelled)


def test_an_app_may_choose_the_wire_id_of_an_approval(new_id: Callable[[], str]) -> None:
    writer = asking(new_id)
    assert writer.tool_input("c", "rm", {"__proto__": 1}) == [
        Start("m"),
        StartStep(),
        ToolInputAvailable("c", "rm", {"_proto_": 1}),
    ]
    assert writer.approval_request("c") == [ToolApprovalRequest("id-1/c/rm/{'_proto_': 1}", "c")]
    assert writer.approval_request("c", approval_id="p") == [ToolApprovalRequest("p/c/rm/{'_proto_': 1}", "c")]


def test_an_agent_goes_on_using_the_id_that_it_gave(new_id: Callable[[], str]) -> None:
    writer = asking(new_id)
    writer.tool_input("c", "rm", 1)
    writer.approval_request("c", approval_id="p")
    approved = [ToolApprovalResponse("p/c/rm/1", approved=True)]
    assert writer.send(ToolApprovalResponse("p", approved=True)) == approved
    assert writer.send(ToolApprovalResponse("p/c/rm/1", approved=True)) == approved


def test_the_input_of_a_continued_call_was_shown_before(new_id: Callable[[], str]) -> None:
    part = {"type": "dynamic-tool", "toolName": "rm", "toolCallId": "c", "state": "input-available", "input": 1}
    data: dict[str, Any] = {"type": "data-x", "toolCallId": [], "data": 1}
    writer = asking(new_id, UIMessage("a", "assistant", [data, part]))
    assert writer.approval_request("c", approval_id="p") == [Start("a"), ToolApprovalRequest("p/c/rm/1", "c")]


def test_a_wire_id_that_no_client_could_send_back_is_not_asked_for(new_id: Callable[[], str]) -> None:
    writer = asking(new_id)
    writer.tool_input("c", "rm", 1)
    with pytest.raises(LocalProtocolError, match=r"^The id of an approval on the wire must be a string of 1 to 512"):
        writer.approval_request("c", approval_id="x" * 510)
    assert writer.tool_output("c", 2) == [ToolOutputAvailable("c", 2)]


def test_an_approval_of_no_call_is_refused(new_id: Callable[[], str]) -> None:
    with pytest.raises(LocalProtocolError, match="which is not known"):
        asking(new_id).approval_request("c")
