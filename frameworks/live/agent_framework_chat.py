"""Microsoft Agent Framework, with a client that keeps nothing: OpenAI's Chat Completions."""

from agent_framework.openai import OpenAIChatCompletionClient

from live.agent_framework_agent import make

__all__ = ["agent"]

agent = make(OpenAIChatCompletionClient)
