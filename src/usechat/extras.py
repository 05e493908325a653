"""The sentence for an extra whose packages are not installed."""

__all__ = ["missing"]


def missing(what: str, error: ModuleNotFoundError, extra: str) -> str:
    """Say which package `what` needs, and how to install it."""
    return f"{what} needs {error.name}. Install it with: pip install 'usechat[{extra}]'"
