"""The chat page that `web/` builds: its files, its settings, and the check of a recorded stream."""

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, structs
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from usechat.errors import RemoteProtocolError, RequestError
from usechat.protocol.clients import ClientName
from usechat.protocol.messages import read_message
from usechat.protocol.requests import Limits, decode_json
from usechat.protocol.verdict import judge, recorded_events
from usechat.server.auth import Authenticate, authenticated
from usechat.server.requests import guarded, json_body, plain_error
from usechat.turns.threads import Threads

__all__ = ["BUILT", "PageAgent", "PagePrompt", "page_routes"]

BUILT: Final = Path(__file__).parent.parent / "page"

_NOT_BUILT: Final = """\
usechat serves an agent to useChat() at {url}

Its page is not built here. In a checkout of usechat, `make page` builds it, which needs Node 20; then load this again.
"""

# Even if an agent's text became HTML, it could not run a script or reach another origin.
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# The name of a file changes with its content.
_FILE_HEADERS: Final = {"cache-control": "public, max-age=31536000, immutable", "x-content-type-options": "nosniff"}
_FILE: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.(css|js|svg)")
# The `mimetypes` of some machines give scripts a type that no browser runs.
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

_LARGEST_RECORDING: Final = 4 * 1024 * 1024
_CHECK_SECONDS: Final = 20.0
_CHECKS: Final = Threads(1)
_PARTS: Final = Limits().parts


class PagePrompt(Struct, frozen=True):
    """A prompt that a click sends, and what it `shows`, in a few words."""

    text: str
    shows: str = ""


class PageAgent(Struct, frozen=True, kw_only=True):
    """An agent of the page: the path of its chat, its name, a sentence about it, and prompts to begin with.

    `client` is the profile of its streams. `keeps` and `lists` say whether the server keeps messages and lists chats.
    `answers` is the path that takes the reply to an agent's question; without one the reply is a message. `socket` is
    the path of its WebSocket. `images` are the paths of this server below which the agent's text may show images, such
    as `/charts/`; files of the chat and `data:` URLs are always shown.

    Raises:
        ValueError: A path of `images` does not begin and end with a slash.
    """

    path: str
    name: str = ""
    about: str = ""
    prompts: tuple[str | PagePrompt, ...] = ()
    client: ClientName = "portable"
    keeps: bool = True
    lists: bool = True
    answers: str | None = None
    socket: str | None = None
    images: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for path in self.images:
            if not re.fullmatch(r"/(.*/)?", path):
                raise ValueError(f"The path {path!r} of images must begin and end with a slash, such as /charts/.")


class _Recording(Struct):
    recording: str
    client: ClientName = "portable"
    continues: Any = None


_RECORDING: Final = msgspec.json.Decoder(_Recording)


def page_routes(
    agents: Sequence[PageAgent], authenticate: Authenticate | None = None, *, built: Path = BUILT
) -> list[Route]:
    """The page at `/`, and its files, its settings and the check below `/page`. Only users who may chat can check.

    `built` is the folder that the build of `web/` wrote.
    """

    async def index(request: Request) -> Response:
        if not (built / "index.html").is_file():
            url = str(request.url.replace(path=request.scope.get("root_path", "") + agents[0].path, query=""))
            return PlainTextResponse(_NOT_BUILT.format(url=url), headers=_HEADERS)
        return FileResponse(built / "index.html", headers=_HEADERS)

    async def file(request: Request) -> Response:
        name = _FILE.fullmatch(request.path_params["name"])
        path = built / "page" / name[0] if name else None
        if name is None or path is None or not path.is_file():
            return PlainTextResponse("The page has no such file.", status_code=404)
        return FileResponse(path, headers=_FILE_HEADERS, media_type=_TYPES[name[1]])

    async def signed_in(request: Request) -> bool:
        return authenticate is None or bool(await authenticated(authenticate, request))

    async def settings(request: Request) -> Response:
        # Without a user, the page asks for a token before the chat refuses the first message.
        return _json({"signedIn": await signed_in(request), "agents": [_shown(agent) for agent in agents]})

    async def check(request: Request) -> Response:
        if not await signed_in(request):
            raise RequestError("Sign in to check a stream.", status=401)
        body = await json_body(request, limit=_LARGEST_RECORDING)
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                return _json(await _CHECKS.run(_check, body))
        except TimeoutError:
            raise RequestError("The check took too long.", status=503, retry_after=5) from None

    return [
        Route("/", index),
        Route("/page/settings", partial(guarded, settings, refuse=plain_error)),
        Route("/page/check", partial(guarded, check, refuse=plain_error), methods=["POST"]),
        Route("/page/{name}", file),
    ]


def _shown(agent: PageAgent) -> dict[str, Any]:
    paths = {"path": agent.path, "answers": agent.answers, "socket": agent.socket}
    # Relative to the page: only the browser knows the prefix that a proxy removes.
    below = {name: None if path is None else f".{path}" for name, path in paths.items()}
    prompts = [PagePrompt(prompt) if isinstance(prompt, str) else prompt for prompt in agent.prompts]
    images = [f".{path}" for path in agent.images]
    return {**structs.asdict(agent), **below, "prompts": prompts, "images": images}


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), headers={"cache-control": "no-store"}, media_type="application/json")


def _check(body: bytes) -> dict[str, Any]:
    given = decode_json(_RECORDING, body, "The body", "must be an object with a recording")
    message = given.continues
    before = None if message is None else read_message(message, "The message", max_parts=_PARTS)
    try:
        verdict = judge(recorded_events(given.recording.encode(errors="replace")), given.client, continues=before)
    except RemoteProtocolError as error:
        raise RequestError(str(error)) from None
    level = "refused" if verdict.violation is not None else "untidy" if verdict.warnings else "accepted"
    found = [*verdict.warnings, *([verdict.violation] if verdict.violation else [])]
    return {"level": level, "chunks": verdict.chunks, "clients": verdict.releases, "violations": found}
