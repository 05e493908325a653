"""Signs in everybody who opens the page, with a cookie: nobody types a token on their own computer."""

import secrets
from hmac import compare_digest
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["SignIn", "SignInMiddleware"]

# The page loads its settings when it opens, and again after the server has restarted.
_PATHS: Final = ("/", "/page/settings")


class SignIn:
    """Recognises the one user of a process by a random cookie, which the end of the process makes worthless.

    Scripts cannot read it, and pages of other sites cannot send it. All who load the page get it, so use it only
    for servers that listen on loopback.
    """

    def __init__(self, user: str) -> None:
        self.user = user
        self._secret = secrets.token_urlsafe(32)

    async def __call__(self, connection: HTTPConnection) -> str | None:
        """The user, if the connection has the cookie."""
        given = connection.cookies.get(_name(connection.scope), "")
        return self.user if compare_digest(given.encode(), self._secret.encode()) else None

    def cookie(self, scope: Scope) -> str:
        """The header that sets the cookie."""
        return f"{_name(scope)}={self._secret}; Path=/; HttpOnly; SameSite=Strict"


class SignInMiddleware:
    """Sets the cookie when the page loads."""

    def __init__(self, app: ASGIApp, sign_in: SignIn) -> None:
        self._app = app
        self._sign_in = sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in _PATHS:
            await self._app(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("set-cookie", self._sign_in.cookie(scope))
            await send(message)

        await self._app(scope, receive, send_with_cookie)


def _name(scope: Scope) -> str:
    """The cookie's name, with the port: a browser sends a host's cookies to all of its ports."""
    return f"usechat-demo-{(scope.get('server') or ('', 0))[1]}"
