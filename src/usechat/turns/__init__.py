"""Turns: one agent at work on one answer, which outlives the connection that asked for it."""

from usechat.turns.settings import TurnLimits

__all__ = ["TurnLimits"]
