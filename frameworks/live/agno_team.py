"""Agno: a team, whose member is the helper."""

import json
from typing import Any

from agno.agent import Agent
from agno.models.openai import OpenAILike
from agno.team import Team

from live.agno_agent import TOOLS, helper, model

__all__ = ["agent"]


class Leader(OpenAILike):
    """Calls the helper as a team does."""

    @staticmethod
    def parse_tool_calls(tool_calls_data: Any) -> list[dict[str, Any]]:
        calls = OpenAILike.parse_tool_calls(tool_calls_data)
        for call in calls:
            function = call["function"]
            if function["name"] == "helper":
                task = json.loads(function["arguments"])["question"]
                function["name"] = "delegate_task_to_member"
                function["arguments"] = json.dumps({"member_id": "helper", "task": task})
        return calls


leader = Leader(**{name: getattr(model(), name) for name in ("id", "base_url", "api_key", "max_retries")})
tools = [one for one in TOOLS if one is not helper]
member = Agent(name="helper", id="helper", model=model(), tools=tools, telemetry=False)
agent = Team(name="main", model=leader, members=[member], tools=tools, telemetry=False)
