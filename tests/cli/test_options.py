import pytest

from usechat.cli.options import ListenSettings, database_name


@pytest.mark.parametrize(
    ("host", "local", "netloc"),
    [
        ("127.0.0.1", True, "127.0.0.1"),
        ("127.9.8.7", True, "127.9.8.7"),
        ("::1", True, "[::1]"),
        ("localhost", True, "localhost"),
        ("0.0.0.0", False, "localhost"),  # noqa: S104
        ("::", False, "localhost"),
        ("192.168.1.2", False, "192.168.1.2"),
        ("::ffff:10.0.0.1", False, "[::ffff:10.0.0.1]"),
        ("localhost.evil.example", False, "localhost.evil.example"),
        ("", False, "localhost"),
    ],
)
def test_only_loopback_addresses_are_local(host: str, local: bool, netloc: str) -> None:
    settings = ListenSettings(host=host)
    assert (settings.local, settings.netloc) == (local, netloc)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///usechat.db", "usechat.db"),
        ("sqlite:////var/lib/chats.db", "/var/lib/chats.db"),
        ("sqlite+aiosqlite:///chats.db", "chats.db"),
        ("sqlite://", "memory"),
        ("postgresql://ann:secret@db.example:5432/chats?password=secret", "chats on db.example"),
        ("postgresql:///chats", "chats on localhost"),
    ],
)
def test_a_database_is_named_without_its_passwords(url: str, name: str) -> None:
    assert database_name(url) == name
