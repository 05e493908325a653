"""Turns of many processes, on one Redis: each has an append-only log, which the holder of its lease writes."""

from usechat.stores.redis.store import RedisTurnStore

__all__ = ["RedisTurnStore"]
