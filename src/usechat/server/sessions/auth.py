"""Who is asking the gateway: the users of the session directory, by tokens of its own or by JWTs."""

from starlette.requests import HTTPConnection

from usechat.server.auth import JwtAuth, bearer_token
from usechat.server.sessions.directory import SessionDirectory

__all__ = ["DirectoryAuth"]


class DirectoryAuth:
    """Knows the users of a directory by its tokens and, if there is a `jwt`, by JWTs whose `sub` is a user there."""

    def __init__(self, directory: SessionDirectory, jwt: JwtAuth | None = None) -> None:
        self._directory = directory
        self._jwt = jwt

    async def __call__(self, connection: HTTPConnection) -> str | None:
        """Give the user of the connection's token.

        Raises:
            DatabaseBusyError: The directory did not answer in time.
            RequestError: The published keys cannot be had, with status 503.
        """
        token = bearer_token(connection)
        if token is None:
            return None
        # A token of the directory has no dots.
        if self._jwt is None or token.count(".") != 2:
            return await self._directory.token_user(token)
        user = await self._jwt(connection)
        return user if user and await self._directory.has_user(user) else None
