"""What to say where the packages of an extra are not installed."""

__all__ = ["missing"]


def missing(what: str, error: ModuleNotFoundError, extra: str) -> str:
    """The sentence that says what `what` needs, and how to install it."""
    return f"{what} needs {error.name}. Install it with: pip install 'usechat[{extra}]'"
