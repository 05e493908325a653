"""LangChain's deepagents: graphs of `create_deep_agent`."""

from usechat.integrations.deepagents.agent import DeepGraphAgent

__all__ = ["DeepGraphAgent"]
