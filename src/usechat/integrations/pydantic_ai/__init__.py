"""Pydantic AI: any `pydantic_ai.Agent`."""

from usechat.integrations.pydantic_ai.agent import PydanticAIAgent, show_sub_agent

__all__ = ["PydanticAIAgent", "show_sub_agent"]
