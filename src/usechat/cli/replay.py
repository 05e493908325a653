"""`usechat replay`: serves a recorded turn, to build a page without an agent."""

from typing import TYPE_CHECKING, Annotated, Final
from uuid import uuid4

import msgspec
import typer

from usechat.cli.options import ListenSettings, Port, read_file, refuse, refusing
from usechat.testing import RecordedChunk, Recording, play

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["replay", "replay_app"]

_DEFAULT: Final = ListenSettings()


def replay(
    file: Annotated[str, typer.Argument(help="A recording that the chat page's inspector saved; - for stdin.")],
    *,
    port: Port = _DEFAULT.port,
    speed: Annotated[
        float, typer.Option(min=0, help="The speed, as a multiple of the recording's. 0 does not wait at all.")
    ] = 1.0,
    path: Annotated[str, typer.Option(help="The URL path of the chat.")] = "/api/chat",
) -> None:
    """Answer every message with a recorded turn, to build a page without an agent.

    Only this computer can connect. Pages of any origin may call.
    """
    settings = ListenSettings(port=port)
    with refusing("usechat replay", "server"):
        from usechat.cli.listening import listen, serve

        try:
            recording = Recording.read(read_file(file))
        except ValueError as error:
            refuse(f"{file}: {error}")
        try:
            app = replay_app(recording, path, speed=speed)
        except ValueError as error:
            refuse(str(error))
        listener = listen(settings)
        typer.echo(f"usechat replays {file} at http://{settings.netloc}:{listener.getsockname()[1]}{path}")
        serve(app, listener)


def replay_app(recording: Recording, path: str, *, speed: float) -> "Starlette":
    """Make an app that answers every message with the recording. It stores no chats and no messages.

    Raises:
        ValueError: The path cannot be the path of a chat.
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    from usechat.server.origins import cors, host_check
    from usechat.server.startup import check_path

    check_path(path)

    async def answer(_request: Request) -> Response:
        headers = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
        headers |= {"x-vercel-ai-ui-message-stream": "v1", "x-usechat-turn": uuid4().hex}
        return StreamingResponse(
            play(_renewed(recording), speed=speed), headers=headers, media_type="text/event-stream"
        )

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


def _renewed(recording: Recording) -> Recording:
    """The recording with a new message id: a page would take the same id for the same message."""
    if recording.continues is not None:
        return recording
    return msgspec.structs.replace(recording, chunks=[_with_new_id(chunk) for chunk in recording.chunks])


def _with_new_id(recorded: RecordedChunk) -> RecordedChunk:
    match msgspec.json.decode(recorded.chunk or b"null"):
        case {"type": "start", "messageId": _, **rest}:
            start = {"type": "start", "messageId": uuid4().hex, **rest}
            return msgspec.structs.replace(recorded, chunk=msgspec.Raw(msgspec.json.encode(start)))
        case _:
            return recorded
