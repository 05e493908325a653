"""What the tests of histories say: messages, and turns that begin with them."""

from collections.abc import Sequence

from usechat.history import HistoryStore, Tail
from usechat.protocol.messages import UIMessage

__all__ = ["A1", "A2", "U1", "U2", "U3", "begin", "said", "tail"]


def said(message_id: str, words: str = "Hello") -> UIMessage:
    return UIMessage(message_id, "user" if message_id[0] == "u" else "assistant", [{"type": "text", "text": words}])


U1, A1, U2, A2, U3 = (said(message_id) for message_id in ("u1", "a1", "u2", "a2", "u3"))


async def tail(history: HistoryStore, chat_id: str = "chat", owner: str = "ann") -> Tail:
    return await history.read(chat_id, owner, lambda stored: stored.tail)


async def begin(
    history: HistoryStore,
    turn_id: str,
    keep: int,
    new: Sequence[UIMessage],
    *,
    chat_id: str = "chat",
    owner: str = "ann",
    epoch: int = 1,
) -> None:
    """Begin a turn in the chat as it is."""
    after = await tail(history, chat_id, owner)
    await history.begin(chat_id, owner, turn_id, after=after, keep=keep, new=new, epoch=epoch)
