"""The OpenAI Agents SDK: any `agents.Agent`."""

from usechat.integrations.openai_agents.agent import OpenAIAgent, show_subagent

__all__ = ["OpenAIAgent", "show_subagent"]
