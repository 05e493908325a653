"""What is said about a database to whoever named it."""

from urllib.parse import urlsplit

__all__ = ["cause", "database_name"]


def database_name(url: str) -> str:
    """What to call a database, without the passwords that its URL may hold."""
    parts = urlsplit(url)
    name = parts.path.removeprefix("/")
    if parts.scheme.startswith("sqlite"):
        return name or "memory"
    return f"{name} on {parts.hostname or 'localhost'}"


def cause(error: BaseException) -> str:
    """The words of the first error, which say what is wrong with the database."""
    return str(error) if error.__cause__ is None else cause(error.__cause__)
