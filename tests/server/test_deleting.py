"""Deleting a chat whose agent or database fails: nothing is lost halfway, and the next attempt finishes it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.fast_loop import hurrying, run_fast, run_jumping
from support.frameworks import InMemorySaver, create_agent
from support.graph_chats import GraphChat, heard
from support.scripted_model import ScriptedModel, says
from usechat.errors import RequestError
from usechat.history import MemoryHistory
from usechat.integrations.langgraph import LangGraphAgent


async def hang() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise OSError("no such disk")


async def work() -> None:
    pass


Fault = Callable[[], Awaitable[None]]


class Saver(InMemorySaver):
    fault: Fault = staticmethod(work)

    async def adelete_thread(self, thread_id: str) -> None:
        await self.fault()
        await InMemorySaver.adelete_thread(self, thread_id)


class Chats(MemoryHistory):
    fault: Fault = staticmethod(work)

    async def delete(self, chat_id: str, owner: str) -> None:
        await self.fault()
        await super().delete(chat_id, owner)


class Deleted:
    """A chat with a graph, of which one message was answered."""

    def __init__(self) -> None:
        self.saver, self.history = Saver(), Chats()
        self.model = ScriptedModel(replies=[says("Hello, Ada."), says("Who?")])
        graph: Any = create_agent(self.model, [], checkpointer=self.saver)
        self.chat = GraphChat(LangGraphAgent(graph), history=self.history)

    async def delete(self) -> None:
        with hurrying(20):
            await self.chat.endpoint.chats.delete("chat", None)

    async def texts(self) -> list[str]:
        return [message.text for message in await self.chat.messages()]

    async def check_gone(self) -> None:
        assert await self.texts() == []
        await self.chat.say("Who am I?")
        assert heard(self.model)[-1] == [("human", "Who am I?")]


@pytest.mark.parametrize("fault", [hang, fail])
def test_a_chat_whose_thread_cannot_be_deleted_stays_until_the_next_attempt(fault: Fault) -> None:
    async def main() -> None:
        deleted = Deleted()
        await deleted.chat.say("I am Ada.")
        deleted.saver.fault = fault
        with pytest.raises((RequestError, OSError)):
            await deleted.delete()
        assert await deleted.texts() == ["I am Ada.", "Hello, Ada."]
        deleted.saver.fault = work
        await deleted.delete()
        await deleted.check_gone()

    run_fast(main())


@pytest.mark.parametrize("fault", [hang, fail])
def test_a_chat_whose_messages_cannot_be_deleted_is_gone_after_the_next_attempt(fault: Fault) -> None:
    async def main() -> None:
        deleted = Deleted()
        await deleted.chat.say("I am Ada.")
        deleted.history.fault = fault
        with pytest.raises((RequestError, OSError)):
            await deleted.delete()
        assert await deleted.texts() == ["I am Ada.", "Hello, Ada."]
        deleted.history.fault = work
        await deleted.delete()
        await deleted.check_gone()

    run_fast(main())


def test_deleting_a_chat_is_refused_within_10_seconds_when_its_thread_hangs() -> None:
    async def main() -> None:
        deleted = Deleted()
        deleted.saver.fault = hang
        with pytest.raises(RequestError) as refused:
            await deleted.chat.endpoint.chats.delete("chat", None)
        assert (refused.value.status, refused.value.retry_after) == (503, 5)
        assert asyncio.get_running_loop().time() < 10

    run_jumping(main())
