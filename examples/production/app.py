"""What each worker serves: the agent, its users, and the Redis and the database that the workers share."""

import asyncio
import os

from usechat import Chat, create_app
from usechat.server.auth import BearerTokens


async def agent(chat: Chat):
    """Count slowly, so that you have time to reload the page, to stop, and to kill a worker."""
    yield f"You said {chat.text!r}. I count: "
    for number in range(1, 201):
        yield f"{number} "
        await asyncio.sleep(0.1)


app = create_app(
    agent,
    store=os.environ["REDIS_URL"],
    history=os.environ["DATABASE_URL"],
    approval_secret=os.environ["CHAT_SECRET"],
    authenticate=BearerTokens({os.environ["CHAT_TOKEN"]: "ada"}),
    grace=20,
    page=True,
)
