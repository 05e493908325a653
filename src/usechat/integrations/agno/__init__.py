"""Agno: any `agno.agent.Agent` or `agno.team.Team`."""

from usechat.integrations.agno.agent import AgnoAgent

__all__ = ["AgnoAgent"]
