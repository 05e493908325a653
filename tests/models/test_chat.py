"""The messages that an agent of a chat gives to its model."""

import json
from typing import Any

from support.http_pages import Page, client, to_end, user
from support.loopback import serving
from usechat import Chat, ToolCall, create_app, to_model_messages

ASKED = {"role": "user", "content": [{"type": "text", "text": "Where am I?"}]}
CALLED: dict[str, Any] = {"type": "tool-call", "toolCallId": "c", "toolName": "locate", "input": {}}
FOUND = {"type": "tool-result", "toolCallId": "c", "toolName": "locate", "output": {"type": "text", "value": "Bonn"}}


async def agent(chat: Chat) -> Any:
    if chat.continues:
        yield json.dumps(await chat.model_messages())
    else:
        yield ToolCall("c", "locate", {})


def in_a_thread(chat: Chat) -> str:
    return json.dumps(to_model_messages(chat.read_history()))


def test_a_turn_that_goes_on_has_what_the_browser_answered() -> None:
    with serving(create_app(agent)) as url, client(url) as http:
        page = Page(http)
        with page.posting(user("m1", "Where am I?")) as lines:
            to_end(lines)
        message = page.messages()[-1]
        message["parts"][-1] |= {"state": "output-available", "output": "Bonn"}
        with page.posting(message) as lines:
            to_end(lines)
        said = page.messages()[-1]["parts"][-1]["text"]
    assert json.loads(said) == [
        ASKED,
        {"role": "assistant", "content": [CALLED]},
        {"role": "tool", "content": [FOUND]},
    ]


def test_an_agent_in_a_thread_has_them_too() -> None:
    with serving(create_app(in_a_thread)) as url, client(url) as http:
        page = Page(http)
        with page.posting(user("m1", "Where am I?")) as lines:
            to_end(lines)
        said = page.messages()[-1]["parts"][-1]["text"]
    assert json.loads(said) == [ASKED]
