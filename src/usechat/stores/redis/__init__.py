"""Turns of many processes, on one Redis: an append-only log for each, written by whoever has its lease."""

from usechat.stores.redis.store import RedisTurnStore

__all__ = ["RedisTurnStore"]
