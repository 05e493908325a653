"""What to say where the packages of an extra are not installed."""

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
    """The sentence that says what `what` needs, and how to install it."""
    return f"{what} needs {error.name}. Install it with: pip install 'usechat[{extra}]'"
