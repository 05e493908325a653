"""LangGraph, and agents of LangChain: any compiled graph."""

from usechat.integrations.langgraph.agent import LangGraphAgent
from usechat.integrations.langgraph.translator import LangGraphOptions

__all__ = ["LangGraphAgent", "LangGraphOptions"]
