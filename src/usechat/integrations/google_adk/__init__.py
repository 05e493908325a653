"""Google ADK: agents, apps and runners."""

from usechat.integrations.google_adk.agent import ADKAgent

__all__ = ["ADKAgent"]
