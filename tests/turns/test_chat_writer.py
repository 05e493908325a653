"""`chat.write`: the methods of `MessageWriter`, for agents."""

import inspect

import pytest

from turns.play import play
from usechat.protocol.chunks import Chunk, Finish, FinishStep, Start, StartStep, TextDelta, TextEnd, TextStart
from usechat.protocol.chunks import ToolInputAvailable as Available
from usechat.protocol.chunks import ToolOutputAvailable as Result
from usechat.protocol.writer import MessageWriter
from usechat.turns.chat import Chat, ChatWriter

# What only the turn itself calls.
INNER = {"start", "flow", "wire_id"}


def test_it_takes_what_the_writer_of_messages_takes() -> None:
    def methods(of: type) -> dict[str, list[str]]:
        functions = inspect.getmembers(of, inspect.isfunction)
        return {name: list(inspect.signature(each).parameters) for name, each in functions if name[0] != "_"}

    taken = {name: names for name, names in methods(MessageWriter).items() if name not in INNER}
    assert methods(ChatWriter) == taken


@pytest.mark.anyio
async def test_what_the_provider_says_about_a_part_is_written_and_none_is_left_out() -> None:
    signed = {"anthropic": {"signature": "s"}}

    async def agent(chat: Chat) -> None:
        chat.write.text("Well.")
        chat.write.end_part(metadata=signed)
        chat.write.tool_input("c", "search", {}, provider_executed=True, title=None, metadata=signed)
        chat.write.tool_output("c", 1, provider_executed=True, metadata=signed)

    said: list[Chunk] = [
        Start("m"),
        StartStep(),
        TextStart("id-1"),
        TextDelta("id-1", "Well."),
        TextEnd("id-1", signed),
        Available("c", "search", {}, provider_executed=True, provider_metadata=signed),
        # Not all clients know metadata here.
        Result("c", 1, provider_executed=True),
        FinishStep(),
        Finish("stop"),
    ]
    assert await (await play(agent)).ended() == said
