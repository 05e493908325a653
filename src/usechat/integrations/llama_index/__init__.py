"""LlamaIndex: its agents, and any other workflow."""

from usechat.integrations.llama_index.agent import LlamaIndexAgent

__all__ = ["LlamaIndexAgent"]
