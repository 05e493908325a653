"""The settings of the commands that serve."""

import ipaddress
from typing import Literal, TypeAlias

from msgspec import Struct

from usechat.cli.databases import database_name
from usechat.errors import UsechatError
from usechat.protocol.clients import ClientName
from usechat.server.sessions.settings import GatewaySettings
from usechat.stores.urls import LEASE

__all__ = ["GatewayCommand", "ListenSettings", "LogFormat", "ServeError", "ServeSettings"]

LogFormat: TypeAlias = Literal["text", "json"]


class ServeError(UsechatError):
    """What keeps a command from serving, in one sentence for whoever typed it."""


class ListenSettings(Struct, frozen=True, kw_only=True):
    """Where to listen, who may call, and what to say of it."""

    host: str = "127.0.0.1"
    port: int = 8000
    cors: tuple[str, ...] = ()
    grace: float = 10.0
    log_format: LogFormat = "text"
    root_path: str = ""

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


class ServeSettings(ListenSettings, frozen=True, kw_only=True):
    """What to serve and how.

    `target` is a `module:name` or the file of a flow, whose node types are in the module `nodes`. All but host, port,
    root path, workers, reload and log format is for agents and flows, not for apps; `runs`, `concurrency` and
    `option` are for flows. `root_path` is the prefix that a proxy takes off the paths of its requests.
    """

    target: str
    nodes: str = ""
    runs: str = ""
    concurrency: int = 1
    option: tuple[str, ...] = ()
    reload: bool = False
    path: str = "/api/chat"
    client: ClientName = "portable"
    store: str = "memory"
    lease: float = LEASE
    workers: int = 1
    history: str = "sqlite:///usechat.db"
    allowed_hosts: tuple[str, ...] = ()

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


class GatewayCommand(ListenSettings, frozen=True, kw_only=True):
    """The gateway to run: what it stands before, whose users it knows, and how it behaves.

    `jwks` is the URL or the file of the keys that sign JWTs, for `audience` and by `issuer`.
    """

    upstream: str
    directory: str
    path: str = "/api/sessions"
    jwks: str = ""
    audience: str = ""
    issuer: str = ""
    gateway: GatewaySettings = GatewaySettings()
