"""Everything at once in one session: each stream shows its own turn and ends, whatever others stop, leave or lose."""

import asyncio
import random
from typing import Any

import pytest

from support.gateways import Gateway, serving_gateway
from support.soak import SEED, draws
from usechat.session_agent import SessionSettings

pytestmark = pytest.mark.anyio

USERS = ("ana", "bob", "cy")
CHANNELS = ("", "", "?channelType=slack&channelId=C1")
# What each prompt says, if nobody stops it; the others are answered with their own words.
ANSWERS = {
    "tools": "Let me look.Two files: a.ts and b.ts.",
    "failover": "The first model saysThe second model answers.",
    "lost": "The runner goesThe runner is back.",
    "question": "No answer, stopping.",
    "late-tool": "It runs.",
    "final": "Only the end has text.",
    "slow 0.1": "0 1 2 3 4 5 6 7 8 9 ",
}


async def talk(gateway: Gateway, number: int, draw: random.Random) -> None:
    """One prompt, which is read to its end, stopped, or left in its middle."""
    prompt = draw.choice([*ANSWERS, "same", *[f"unique {number}"] * 4])
    expected = ANSWERS.get(prompt, f"You said: {prompt}")
    user, query = draw.choice(USERS), draw.choice(CHANNELS)
    ending = draw.choice(("read", "read", "read", "stop", "leave"))
    started, patience = draw.random() * 0.4, draw.randrange(12)
    await asyncio.sleep(started)
    said = ""
    last: dict[str, Any] = {}
    async with gateway.asking(prompt, chat=f"c{number}", user=user, query=query) as stream:
        seen = 0
        async for chunk in stream:
            said += chunk.get("delta", "")
            last = chunk
            seen += 1
            if seen == patience and ending == "stop":
                await gateway.post(f"chat/c{number}/stop", user=user)
            if seen == patience and ending == "leave":
                break
        else:
            assert last["type"] in ("finish", "abort"), (prompt, last)
    assert expected.startswith(said), (prompt, said)
    assert said == expected or last["type"] != "finish", (prompt, said)


@pytest.mark.parametrize("vocabulary", ["client", "both"])
async def test_each_stream_is_its_own_whatever_happens_beside_it(vocabulary: Any) -> None:
    for seed in range(draws(2)):
        draw = random.Random(SEED + seed)  # noqa: S311
        agent = SessionSettings(pace=0.002, question_seconds=0.1, vocabulary=vocabulary)
        async with serving_gateway(agent=agent) as gateway:
            for user in USERS[1:]:
                await gateway.headers(user)
                await gateway.directory.grant("s1", user, "collaborator")
            talks = [talk(gateway, number, random.Random(draw.random())) for number in range(16)]  # noqa: S311
            await asyncio.gather(*talks)
            await gateway.agent.until(lambda: not gateway.agent.sockets)
            assert await gateway.metric("adapter_ws_open") == 0
