"""The Claude Agent SDK: any `ClaudeAgentOptions`."""

from usechat.integrations.claude_agent.agent import ClaudeAgent

__all__ = ["ClaudeAgent"]
