"""LlamaIndex: two agents, one of which can hand over to the other, and a third as a tool."""

import os

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent, StopEvent
from llama_index.llms.openai import OpenAI

import effects
from effects import boom, get_weather, wait

__all__ = ["agent"]

llm = OpenAI(
    model="gpt-4o",
    api_base=f"{os.environ['PROVIDER_URL']}/v1",
    api_key="none",
    max_retries=0,
    additional_kwargs={"stream_options": {"include_usage": True}},
)
helper_agent = FunctionAgent(name="helper", description="Helps.", llm=llm)


async def pay(ctx: Context, amount: int) -> str:
    """Pay an amount, if the user says yes."""
    asked = InputRequiredEvent(prefix=f"Pay {amount}?", amount=amount)
    answer = await ctx.wait_for_event(HumanResponseEvent, waiter_event=asked, requirements={"amount": amount})
    return await effects.pay(amount) if answer.response == "yes" else f"The user said: {answer.response}"


async def helper(ctx: Context, question: str) -> str:
    """Ask the helper, and show what it says."""
    run = helper_agent.run(user_msg=question)
    async for event in run.stream_events():
        if not isinstance(event, StopEvent):
            ctx.write_event_to_stream(event)
    return str(await run)


main = FunctionAgent(
    name="main",
    description="Answers.",
    system_prompt="Hand over with the tool handoff.",
    tools=[get_weather, boom, pay, wait, helper],
    llm=llm,
)
expert = FunctionAgent(
    name="expert",
    description="Knows more.",
    system_prompt="You are the expert.",
    tools=[get_weather],
    llm=llm,
    can_handoff_to=[],
)
agent = AgentWorkflow(agents=[main, expert], root_agent="main")
