"""Strands: agents that a function makes, one for each turn."""

from usechat.integrations.strands.agent import StrandsAgent

__all__ = ["StrandsAgent"]
