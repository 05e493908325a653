"""One prompt at a time in a session: the queue, its modes, and aborts."""

import asyncio

import pytest

from support.fast_loop import hurrying, run_fast
from support.session_clients import Client, brief, joined, nothing_left
from usechat.session_agent import SessionAgent, SessionSettings

pytestmark = pytest.mark.anyio

END = ["turn_complete", "status runnerBusy=False", "idle"]
QUEUED = ["audit user.prompt", "audit prompt.queued"]
EMPTY = ["thinking", "assistant: ", "updated: finish end_turn"]


def next_one(remaining: int) -> list[str]:
    return ["turn_complete", f"status promptDequeued=True remaining={remaining}", "idle"]


async def hang(client: Client) -> None:
    await client.prompt("hang")
    await client.until("+ I wait")


async def test_prompts_are_answered_one_after_the_other_in_the_order_in_which_they_came() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await hang(client)
        await client.prompt("empty", queueMode="followup")
        await client.prompt("silent")
        assert await client.briefs("status promptQueued=True queuePosition=2") == [
            *["user: empty", *QUEUED, "status promptQueued=True queuePosition=1"],
            *["user: silent", *QUEUED, "status promptQueued=True queuePosition=2"],
        ]
        async with joined(agent, "bo") as other:
            data = other.heard[0]["data"]
            assert (data["runnerBusy"], data["promptsQueued"]) == (True, 2)
        await client.until("audit user.left")
        agent.session("s1").release()
        assert await client.briefs(*END) == [
            *["+  no more.", "updated: I wait no more. | finish end_turn", *next_one(1)],
            *[*EMPTY, *next_one(0)],
            *["thinking", "assistant: ", *END],
        ]


async def test_two_users_at_once_see_the_same_frames_and_only_their_own_name_on_their_prompts() -> None:
    async with SessionAgent().serving() as agent, joined(agent, "ana") as ana, joined(agent, "bo") as bo:
        await ana.until("audit user.joined")
        prompts = [(client, f"long {number}") for number in range(20, 30) for client in (ana, bo)]
        await asyncio.gather(*(client.prompt(text) for client, text in prompts))
        frames = await ana.until(*["turn_complete"] * 20, "status runnerBusy=False", "idle")
        assert await bo.until(*["turn_complete"] * 20, "status runnerBusy=False", "idle") == frames
        echoes = [frame["data"] for frame in frames if brief(frame).startswith("user: ")]
        assert sorted((echo["authorId"], echo["content"]) for echo in echoes) == sorted(
            ("ana" if client is ana else "bo", text) for client, text in prompts
        )
        # The turns are not mixed, and come in the order of the echoes.
        turns = [frame["messageId"] for frame in frames if frame["type"] == "chunk"]
        ends = [frame["data"] for frame in frames if frame["type"] == "message.updated"]
        expected = [end["id"] for end, echo in zip(ends, echoes, strict=True) for _ in range(int(echo["content"][5:]))]
        assert turns == expected


async def test_an_abort_ends_the_turn_without_a_finish_and_deletes_what_is_queued() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client, joined(agent, "bo") as other:
        await hang(client)
        await client.prompt("one")
        await client.prompt("two", channelType="slack", channelId="C1")
        await client.until("status promptQueued=True queuePosition=2")
        await other.send("abort", channelType="web", channelId="default")
        assert await client.briefs(*END) == [
            *["idle", "audit user.abort", "idle", "status runnerBusy=False aborted=True", *END]
        ]
        assert await client.turn("empty") == [*EMPTY, *END]
        await client.send("abort")
        await client.send("ping")
        assert await client.briefs("pong") == ["idle", "audit user.abort", "pong"]
        assert [received.user for received in agent.received("abort")] == ["bo", "ana"]


async def test_an_abort_that_comes_with_its_prompt_is_not_lost() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        for _ in range(20):
            await asyncio.gather(client.prompt("hang"), client.send("abort"), client.prompt("empty"))
            await client.until("status runnerBusy=False aborted=True", "updated: finish end_turn", *END)


async def test_an_abort_in_v2_frames_is_an_aborted_and_a_complete() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.prompt("v2 hang")
        await client.until("v2+ I wait")
        await client.send("abort")
        assert await client.briefs("complete", "idle") == [
            *["idle", "audit user.abort", "aborted", "idle", "complete", "idle"]
        ]


async def test_an_abort_withdraws_the_question_that_is_open() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.prompt("question")
        question = (await client.until("question"))[-1]
        await asyncio.gather(
            client.send("abort"), client.send("answer", questionId=question["questionId"], answer="late")
        )
        assert await client.briefs(*END) == [
            *["toast", "idle", "audit user.abort", "idle", "status runnerBusy=False aborted=True", *END]
        ]
        async with joined(agent, "bo") as other:
            assert [brief(frame) for frame in other.heard] == ["init", "user.joined", "audit user.joined"]


async def test_a_prompt_that_steers_aborts_the_turn_and_comes_next() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await hang(client)
        await client.prompt("never said")
        await client.until("status promptQueued=True queuePosition=1")
        await client.prompt("empty", queueMode="steer")
        assert await client.briefs(*END) == [
            *["idle", "audit user.abort", "user: empty", *QUEUED, "status promptQueued=True queuePosition=1"],
            *["idle", "status runnerBusy=False aborted=True", *next_one(0)],
            *[*EMPTY, *END],
        ]
        await client.prompt("silent", queueMode="steer")
        assert await client.briefs(*END) == [*["user: silent", "audit user.prompt", "thinking", "assistant: ", *END]]


async def test_a_prompt_that_steers_in_a_channel_leaves_the_others_alone() -> None:
    slack = {"channelType": "slack", "channelId": "C1"}
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await hang(client)
        await client.prompt("deleted", **slack)
        await client.prompt("empty")
        await client.prompt("silent", queueMode="steer", **slack)
        position = "status promptQueued=True queuePosition=2"
        steered = (await client.briefs(position, position))[-6:]
        assert steered == ["idle", "audit user.abort", "user: silent", *QUEUED, position]
        agent.session("s1").release()
        assert await client.briefs(*END) == [
            *["+  no more.", "updated: I wait no more. | finish end_turn", *next_one(1)],
            *[*EMPTY, *next_one(0)],
            *["thinking", "assistant: ", *END],
        ]


def test_collected_prompts_become_one_when_their_channel_is_quiet() -> None:
    run_fast(collect())


async def collect() -> None:
    slack = {"channelType": "slack", "channelId": "C1"}
    async with SessionAgent(SessionSettings(collect_seconds=20)).serving() as agent, joined(agent) as client:
        await client.prompt("one", queueMode="collect")
        await client.prompt("empty", queueMode="collect", **slack)
        await client.prompt("two", queueMode="collect")
        assert await client.briefs("status collectPending=True collectCount=2") == [
            *["user: one", "status collectPending=True collectCount=1"],
            *["user: empty", "status collectPending=True collectCount=1"],
            *["user: two", "status collectPending=True collectCount=2"],
        ]
        with hurrying(100):
            flushed = "status collectPending=False collectCount=0"
            assert await client.briefs(flushed) == ["user: empty", "audit user.prompt", flushed]
            merged = "one\n\n---\n\ntwo"
            assert f"user: {merged}" in await client.briefs(f"updated: You said: {merged} | finish end_turn")


def test_a_prompt_whose_runner_is_lost_waits_before_all_others() -> None:
    run_fast(lose_runner())


async def lose_runner() -> None:
    async with SessionAgent(SessionSettings(pace=5)).serving() as agent, joined(agent) as client:
        await client.prompt("lost")
        with hurrying(100):
            await client.until("status runnerConnected=False queuedPrompts=1 runnerDisconnected=True")
        async with joined(agent, "bo") as other:
            data = other.heard[0]["data"]
            assert (data["runnerConnected"], data["runnerBusy"], data["promptsQueued"]) == (False, False, 1)
        await client.until("audit user.left")
        await client.prompt("empty")
        assert await client.briefs("status promptQueued=True queuePosition=2") == [
            *["user: empty", *QUEUED, "status promptQueued=True queuePosition=2"]
        ]
        assert "no runner connected" in client.heard[-2]["entry"]["summary"]
        with hurrying(100):
            assert await client.briefs(*END) == [
                *["status runnerConnected=True", "models", "idle", "status promptDequeued=True remaining=1"],
                *["thinking", "streaming", "assistant: ", "+ The runner ", "+ is back."],
                *["updated: The runner is back. | finish end_turn", *next_one(0), *EMPTY, *END],
            ]


async def test_a_hibernated_session_wakes_for_a_prompt() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.turn("hibernate")
        asleep = ["status status=hibernating", "status status=hibernated sandboxRunning=False"]
        assert await client.briefs(*asleep) == asleep
        async with joined(agent, "bo") as other:
            init = other.heard[0]
            assert (init["session"]["status"], init["data"]["runnerConnected"]) == ("hibernated", False)
        await client.until("audit user.left")
        await client.prompt("empty")
        assert await client.briefs(*END) == [
            *["status status=restoring", "user: empty", *QUEUED, "status promptQueued=True queuePosition=1"],
            *["status status=running sandboxRunning=True", "status runnerConnected=True", "models", "idle"],
            *["status promptDequeued=True remaining=0", *EMPTY, *END],
        ]


async def test_a_terminated_session_ends_at_once_and_takes_no_prompts() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await hang(client)
        await client.prompt("terminate")
        await client.prompt("never said")
        await client.until("status promptQueued=True queuePosition=2")
        agent.session("s1").release()
        assert (await client.briefs("status status=terminated sandboxRunning=False"))[-2:] == [
            *["+ all", "status status=terminated sandboxRunning=False"]
        ]
        await client.prompt("more")
        assert await client.briefs("error Session has been terminated") == ["error Session has been terminated"]
        async with joined(agent) as later:
            init = later.heard[0]
            assert (init["session"]["status"], init["data"]["promptsQueued"]) == ("terminated", 0)


async def test_a_revert_removes_a_message_and_all_after_it() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        await client.turn("one")
        await client.turn("two")
        messages = [frame["data"]["id"] for frame in client.heard if frame["type"] == "message"]
        await client.send("revert", messageId=messages[2])
        assert await client.next() == {"type": "messages.removed", "messageIds": messages[2:]}
        async with joined(agent) as later:
            assert [message["id"] for message in later.heard[0]["session"]["messages"]] == messages[:2]


async def test_a_turn_goes_on_when_everybody_has_left() -> None:
    async with SessionAgent().serving() as agent:
        before = asyncio.all_tasks()
        async with joined(agent) as client:
            await hang(client)
        agent.session("s1").release()
        await nothing_left(agent, before)
        async with joined(agent) as later:
            messages = later.heard[0]["session"]["messages"]
            assert messages[-1]["content"] == "I wait no more."


async def test_a_session_that_is_asked_for_long_stays_small() -> None:
    async with SessionAgent().serving() as agent, joined(agent) as client:
        for _ in range(260):
            await client.prompt("empty")
        await client.until(*["turn_complete"] * 260)
        async with joined(agent) as later:
            init = later.heard[0]
            assert (len(init["session"]["messages"]), len(init["data"]["auditLog"])) == (500, 100)


async def test_a_hundred_sockets_one_after_the_other_and_a_hundred_sessions_at_once_leave_nothing() -> None:
    async def ask(session: str) -> None:
        async with joined(agent, session=session) as client:
            await client.turn("tools")

    async with SessionAgent().serving() as agent:
        before = asyncio.all_tasks()
        for _ in range(100):
            await ask("s1")
        await nothing_left(agent, before)
        await asyncio.gather(*(ask(f"session-{number}") for number in range(100)))
        await nothing_left(agent, before)
