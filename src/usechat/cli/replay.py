"""`usechat replay`: a recorded turn as a server, for those who build a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from uuid import uuid4

import msgspec
import typer

from usechat.cli.refusal import refuse
from usechat.cli.settings import ListenSettings, ServeError
from usechat.cli.shared_options import Port
from usechat.extras import missing
from usechat.testing import RecordedChunk, Recording, play

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["replay", "replay_app"]

_DEFAULT: Final = ListenSettings()


def replay(
    file: Annotated[str, typer.Argument(help="A recording that the inspector of the chat page saved.")],
    *,
    port: Port = _DEFAULT.port,
    speed: Annotated[float, typer.Option(min=0, help="How many times as fast as it was; 0 waits for nothing.")] = 1.0,
    path: Annotated[str, typer.Option(help="The path of the chat.")] = "/api/chat",
) -> None:
    """Answer every message with a recorded turn; pages of any origin may ask, on this computer."""
    try:
        from usechat.cli.listening import listen, serve

        recording = Recording.read(Path(file).read_bytes())
    except ModuleNotFoundError as error:
        refuse(missing("usechat replay", error, "server"))
    except OSError as error:
        refuse(f"{file} cannot be read: {error.strerror}.")
    except ValueError as error:
        refuse(f"{file}: {error}")
    settings = ListenSettings(port=port)
    try:
        app = replay_app(recording, path, speed=speed)
        listener = listen(settings)
    except (ValueError, ServeError) as error:
        refuse(str(error))
    typer.echo(f"usechat replays {file} at http://{settings.netloc}:{listener.getsockname()[1]}{path}")
    serve(app, settings, listener)


def replay_app(recording: Recording, path: str, *, speed: float) -> "Starlette":
    """Make the app that answers every message with the recording, and has nothing else to tell.

    Raises:
        ValueError: That cannot be the path of a chat.
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    from usechat.server.arguments import check_path
    from usechat.server.origins import cors, host_check

    check_path(path)

    async def answer(_request: Request) -> Response:
        headers = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
        headers |= {"x-vercel-ai-ui-message-stream": "v1", "x-usechat-turn": uuid4().hex}
        return StreamingResponse(play(_anew(recording), speed=speed), headers=headers, media_type="text/event-stream")

    async def nothing(_request: Request) -> Response:
        return Response(status_code=204)

    async def no_messages(_request: Request) -> Response:
        return JSONResponse([])

    async def no_chats(_request: Request) -> Response:
        return JSONResponse({"chats": []})

    routes = [
        Route(path, answer, methods=["POST"]),
        Route(f"{path}s", no_chats),
        Route(f"{path}/{{chat}}", nothing, methods=["DELETE"]),
        Route(f"{path}/{{chat}}/stream", nothing),
        Route(f"{path}/{{chat}}/stop", nothing, methods=["POST"]),
        Route(f"{path}/{{chat}}/messages", no_messages),
    ]
    return Starlette(routes=routes, middleware=[host_check(), cors(["*"])])


def _anew(recording: Recording) -> Recording:
    """The recording as a message of its own each time, since pages tell messages apart by their ids."""
    if recording.continues is not None:
        return recording
    return msgspec.structs.replace(recording, chunks=[_started_anew(chunk) for chunk in recording.chunks])


def _started_anew(recorded: RecordedChunk) -> RecordedChunk:
    match msgspec.json.decode(recorded.chunk or b"null"):
        case {"type": "start", "messageId": _, **rest}:
            start = {"type": "start", "messageId": uuid4().hex, **rest}
            return msgspec.structs.replace(recorded, chunk=msgspec.Raw(msgspec.json.encode(start)))
        case _:
            return recorded
