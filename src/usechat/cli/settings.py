"""The settings of `usechat serve`."""

import ipaddress
from typing import Literal, TypeAlias

from msgspec import Struct

from usechat.cli.databases import database_name
from usechat.errors import UsechatError
from usechat.protocol.clients import ClientName

__all__ = ["LogFormat", "ServeError", "ServeSettings"]

LogFormat: TypeAlias = Literal["text", "json"]


class ServeError(UsechatError):
    """What keeps `usechat serve` from serving, in one sentence for whoever typed it."""


class ServeSettings(Struct, frozen=True, kw_only=True):
    """What to serve and how.

    `target` is a `module:name` or the file of a flow, whose node types are in the module `nodes`. All but host, port,
    reload and log format is for agents and flows, not for apps; `runs`, `concurrency` and
    `option` are for flows.
    """

    target: str
    nodes: str = ""
    runs: str = ""
    concurrency: int = 1
    option: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    reload: bool = False
    path: str = "/api/chat"
    client: ClientName = "portable"
    store: Literal["memory"] = "memory"
    history: str = "sqlite:///usechat.db"
    cors: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    grace: float = 10.0
    log_format: LogFormat = "text"

    @property
    def local(self) -> bool:
        """Whether only this computer can connect."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def netloc(self) -> str:
        """The host as a URL on this computer names it."""
        if self.host in ("", "0.0.0.0", "::"):  # noqa: S104
            return "localhost"
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def keeps_chats(self) -> bool:
        return self.history != "client"

    @property
    def history_name(self) -> str:
        """What to call the database of the chats, without the passwords that its URL may hold."""
        return database_name(self.history)

    @property
    def runs_name(self) -> str:
        """The same for the database of the runs of a flow."""
        return database_name(self.runs)
