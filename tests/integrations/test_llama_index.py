"""What LlamaIndex is given and what it is recognised by; `frameworks/` runs the package itself."""

from typing import Any

import pytest

from usechat.integrations import find_agent
from usechat.integrations.llama_index import LlamaIndexAgent
from usechat.integrations.llama_index.messages import to_llama_index
from usechat.protocol.messages import UIMessage
from usechat.protocol.model_messages import to_model_messages

pytestmark = pytest.mark.anyio

Workflow: Any = type("Workflow", (), {"__module__": "workflows.workflow"})
OpenAI: Any = type("OpenAI", (), {"__module__": "llama_index.llms.openai.base"})
PDF = "data:application/pdf;base64,JVBERg=="


def pay(output: str) -> dict[str, Any]:
    return {
        "type": "tool-pay",
        "toolCallId": "call_1",
        "state": "output-available",
        "input": {"amount": 5},
        "output": output,
    }


def message(role: Any, *parts: dict[str, Any]) -> UIMessage:
    return UIMessage(id=role, role=role, parts=list(parts))


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def block(words: str) -> dict[str, Any]:
    return {"block_type": "text", "text": words}


async def test_an_object_of_a_class_that_stands_on_workflow_is_recognised() -> None:
    workflow = type("Mine", (Workflow,), {})()
    assert isinstance(find_agent(workflow), LlamaIndexAgent)
    assert LlamaIndexAgent.wrap(Workflow) is None
    with pytest.raises(TypeError, match="str is not a workflow of LlamaIndex, or an agent of it"):
        LlamaIndexAgent("no workflow")


def test_a_call_that_waited_for_the_user_is_there_once() -> None:
    chat = to_model_messages(
        [
            message(
                "user", text("Pay"), {"type": "file", "mediaType": "application/pdf", "url": PDF, "filename": "a.pdf"}
            ),
            message("assistant", text("May I?"), pay("This call waits for your answer.")),
            message("user", text("yes")),
            message("assistant", pay("paid 5"), {"type": "step-start"}, text("Done.")),
        ]
    )
    call = {"block_type": "tool_call", "tool_call_id": "call_1", "tool_name": "pay", "tool_kwargs": {"amount": 5}}
    document = {"block_type": "document", "data": "JVBERg==", "document_mimetype": "application/pdf", "title": "a.pdf"}
    said = to_llama_index(chat)
    assert said == [
        {"role": "user", "blocks": [block("Pay"), document]},
        {"role": "assistant", "blocks": [block("May I?")]},
        {"role": "user", "blocks": [block("yes")]},
        {"role": "assistant", "blocks": [call]},
        {"role": "tool", "blocks": [block("paid 5")], "additional_kwargs": {"tool_call_id": "call_1"}},
        {"role": "assistant", "blocks": [block("Done.")]},
    ]
    # The package of OpenAI takes arguments as text.
    said[3]["blocks"] = [{**call, "tool_kwargs": '{"amount":5}'}]
    assert to_llama_index(chat, llm=OpenAI()) == said
