"""The sentence for an extra whose packages are not installed."""

from typing import Final

__all__ = ["FRAMEWORKS", "missing"]

FRAMEWORKS: Final = {
    "deepagents": "deepagents",
    "fastapi": "fastapi",
    "langchain_core": "langgraph",
    "langgraph": "langgraph",
}
"""The extra of each package that agents and apps import themselves."""


def missing(what: str, error: ModuleNotFoundError, extra: str) -> str:
    """Say which package `what` needs, and how to install it."""
    return f"{what} needs {error.name}. Install it with: pip install 'usechat[{extra}]'"
