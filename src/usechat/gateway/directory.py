"""The session directory: users, sessions, who takes part in them, and tokens, in a database; and users by tokens."""

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
from starlette.requests import HTTPConnection

from usechat.database import Database, insert_into, metadata
from usechat.errors import RequestError, UsechatError
from usechat.gateway.access import REQUIRED, Endpoint, Kind, Role, Session, Visibility, may_access
from usechat.server.auth import JwtAuth, bearer_token

__all__ = ["DirectoryAuth", "DirectoryError", "SessionDirectory"]

# What PostgreSQL can store and index, and what stands for itself in a path; a lone surrogate is no text to either
# database.
_ID: Final = re.compile(r"(?!\.{1,2}\Z)[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,512}")
_NOT_FOUND: Final = "There is no session with this id."

_USERS = sa.Table("usechat_users", metadata, sa.Column("user_id", sa.Text, primary_key=True))
_SESSIONS = sa.Table(
    "usechat_sessions",
    metadata,
    # Participants hang on it, because an index of PostgreSQL has no room for two ids.
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("session_id", sa.Text, nullable=False, unique=True),
    sa.Column[str]("owner", sa.ForeignKey(_USERS.c.user_id), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("visibility", sa.Text, nullable=False),
    sa.Column("adapter", sa.Boolean, nullable=False),
)
_PARTICIPANTS = sa.Table(
    "usechat_participants",
    metadata,
    sa.Column[int]("session", sa.ForeignKey(_SESSIONS.c.number), primary_key=True),
    sa.Column[str]("user_id", sa.ForeignKey(_USERS.c.user_id), primary_key=True),
    sa.Column("role", sa.Text, nullable=False),
)
# The hash is the SHA-256 of the token in hexadecimal; times are seconds since 1970.
_TOKENS = sa.Table(
    "usechat_tokens",
    metadata,
    sa.Column("hash", sa.Text, primary_key=True),
    sa.Column[str]("user_id", sa.ForeignKey(_USERS.c.user_id), nullable=False),
    sa.Column("expires", sa.Float(53), nullable=False),
    sa.Column("revoked", sa.Float(53)),
)

_THE_USER = sa.select(_USERS.c.user_id).where(_USERS.c.user_id == sa.bindparam("user_id"))
_THE_SESSION = sa.select(_SESSIONS.c.number, _SESSIONS.c.kind).where(
    _SESSIONS.c.session_id == sa.bindparam("session_id")
)
_TOKEN_USER = sa.select(_TOKENS.c.user_id).where(
    _TOKENS.c.hash == sa.bindparam("hash"), _TOKENS.c.revoked.is_(None), _TOKENS.c.expires > sa.bindparam("now")
)
# One statement whatever is missing, so that nobody can tell by its time which it was.
_ACCESS = (
    sa.select(_SESSIONS.c.owner, _SESSIONS.c.kind, _SESSIONS.c.visibility, _SESSIONS.c.adapter, _PARTICIPANTS.c.role)
    .select_from(_USERS)
    .join(_SESSIONS, _SESSIONS.c.session_id == sa.bindparam("session_id"))
    .outerjoin(
        _PARTICIPANTS,
        sa.and_(_PARTICIPANTS.c.session == _SESSIONS.c.number, _PARTICIPANTS.c.user_id == _USERS.c.user_id),
    )
    .where(_USERS.c.user_id == sa.bindparam("user_id"))
)
_REVOKE = (
    sa.update(_TOKENS)
    .where(_TOKENS.c.hash == sa.bindparam("of"))
    .values(revoked=sa.func.coalesce(_TOKENS.c.revoked, sa.bindparam("now")))
)


class DirectoryError(UsechatError):
    """A row that the session directory cannot take, in one sentence."""


class SessionDirectory:
    """Who may use which session. Each call is one transaction; all of them are in the database alone.

    The users of the directory are the organisation for which a session can be visible or joinable.

    Raises:
        DatabaseBusyError: The database did not answer in time; any call may raise it.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def create_tables(self) -> None:
        """Create and migrate the tables, which any other call does as well."""
        await self._database.run(lambda _: None)

    async def ping(self, within: float) -> None:
        """Find out whether the directory answers."""
        await self._database.read(lambda _: None, within=within)

    async def add_user(self, user_id: str) -> None:
        """Add a user.

        Raises:
            DirectoryError: There is one with this id, or the id cannot be one.
        """
        _check_id(user_id, "user")
        await self._database.run(lambda connection: _insert(connection, _USERS, "user", {"user_id": user_id}))

    async def add_session(
        self,
        session_id: str,
        owner: str,
        *,
        kind: Kind = "session",
        visibility: Visibility = "private",
        adapter: bool = True,
    ) -> None:
        """Add a session of a user; without its adapter nobody finds it.

        Raises:
            DirectoryError: There is one with this id, or no such user, or the id cannot be one.
        """
        _check_id(session_id, "session")
        row = {"session_id": session_id, "owner": owner, "kind": kind, "visibility": visibility, "adapter": adapter}

        def add(connection: sa.Connection) -> None:
            _check_user(connection, owner)
            _insert(connection, _SESSIONS, "session", row)

        await self._database.run(add)

    async def change_session(
        self, session_id: str, *, visibility: Visibility | None = None, adapter: bool | None = None
    ) -> None:
        """Change what is given, one of them at least; it counts from the next request.

        Raises:
            DirectoryError: There is no such session.
        """
        given = {"visibility": visibility, "adapter": adapter}
        changes = {name: value for name, value in given.items() if value is not None}
        query = sa.update(_SESSIONS).where(_SESSIONS.c.session_id == _lookup(session_id)).values(**changes)

        def change(connection: sa.Connection) -> None:
            if not connection.execute(query).rowcount:
                raise DirectoryError(f"There is no session {session_id!r:.80}.")

        await self._database.run(change)

    async def grant(self, session_id: str, user_id: str, role: Role) -> None:
        """Give a user this role in the session, in place of an earlier one.

        Raises:
            DirectoryError: There is no such session or user, or the session is an orchestrator or a workflow.
        """

        def grant(connection: sa.Connection) -> None:
            session = connection.execute(_THE_SESSION, {"session_id": _lookup(session_id)}).first()
            if session is None:
                raise DirectoryError(f"There is no session {session_id!r:.80}.")
            if session.kind != "session":
                raise DirectoryError(f"A session of the kind {session.kind} cannot be shared.")
            _check_user(connection, user_id)
            new = insert_into(_PARTICIPANTS, connection.dialect.name)
            key = [_PARTICIPANTS.c.session, _PARTICIPANTS.c.user_id]
            connection.execute(
                new.on_conflict_do_update(index_elements=key, set_={"role": new.excluded.role}),
                {"session": session.number, "user_id": user_id, "role": role},
            )

        await self._database.run(grant)

    async def add_token(self, user_id: str, lifetime: float) -> str:
        """Make a token that is valid for `lifetime` seconds; only its hash is kept.

        Raises:
            DirectoryError: There is no such user.
        """
        token = secrets.token_hex(32)
        row = {"hash": _hash(token), "user_id": user_id, "expires": self._clock() + lifetime}

        def add(connection: sa.Connection) -> None:
            _check_user(connection, user_id)
            connection.execute(sa.insert(_TOKENS), row)

        await self._database.run(add)
        return token

    async def revoke(self, token: str) -> None:
        """Take a token back, from the next request on.

        Raises:
            DirectoryError: There is no such token.
        """
        values = {"of": _hash(token), "now": self._clock()}
        if not await self._database.run(lambda connection: connection.execute(_REVOKE, values).rowcount):
            raise DirectoryError("There is no such token.")

    async def has_user(self, user_id: str) -> bool:
        user = {"user_id": _lookup(user_id)}
        return await self._database.read(lambda connection: connection.scalar(_THE_USER, user)) is not None

    async def token_user(self, token: str) -> str | None:
        """Give the user of a token that has not expired and was not revoked."""
        values = {"hash": _hash(token), "now": self._clock()}
        return await self._database.read(lambda connection: connection.scalar(_TOKEN_USER, values))

    async def check_access(self, session_id: str, user_id: str, endpoint: Endpoint) -> None:
        """Return if the user may use this endpoint of the session.

        Raises:
            RequestError: They may not, or there is no such session or user, or its adapter is off; always the same one,
                with status 404.
        """
        ids = {"session_id": _lookup(session_id), "user_id": _lookup(user_id)}
        row = await self._database.read(lambda connection: connection.execute(_ACCESS, ids).first())
        if row is not None and row.adapter:
            session = Session(row.owner, row.kind, row.visibility)
            if may_access(session, user_id, row.role, REQUIRED[endpoint]):
                return
        raise RequestError(_NOT_FOUND, status=404)


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


def _lookup(name: str) -> str:
    """The id to look for: one that cannot be stored is asked for all the same, as one that nobody has."""
    return name if _ID.fullmatch(name) else ""


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def _check_id(name: str, thing: str) -> None:
    if not _ID.fullmatch(name):
        raise DirectoryError(
            f"The id of a {thing} must have 1 to 512 characters and no control characters, and not be . or .. alone."
        )


def _check_user(connection: sa.Connection, user_id: str) -> None:
    if connection.scalar(_THE_USER, {"user_id": _lookup(user_id)}) is None:
        raise DirectoryError(f"There is no user {user_id!r:.80}.")


def _insert(connection: sa.Connection, table: sa.Table, thing: str, row: dict[str, Any]) -> None:
    new = insert_into(table, connection.dialect.name).on_conflict_do_nothing()
    if connection.execute(new, row).rowcount != 1:
        raise DirectoryError(f"There is a {thing} {row[f'{thing}_id']!r:.80} already.")
