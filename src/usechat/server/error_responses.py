"""Exceptions as responses that say what a stranger may know: one sentence, as text or as JSON."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from usechat.errors import DatabaseBusyError, RequestError
from usechat.turns.failures import explain

__all__ = ["Endpoint", "error_headers", "guarded", "json_error", "plain_error"]

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

_STATUS_HEADERS: Final[dict[int, dict[str, str]]] = {
    401: {"www-authenticate": "Bearer"},
    # Otherwise the server would keep the connection for a client that goes on dripping.
    408: {"connection": "close"},
}
_CODES: Final = {
    400: "VALIDATION_ERROR",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    409: "CONFLICT",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    429: "TOO_MANY_REQUESTS",
    500: "INTERNAL_ERROR",
    502: "BAD_GATEWAY",
    503: "SERVICE_UNAVAILABLE",
}


async def guarded(endpoint: Endpoint, request: Request, refuse: Callable[[RequestError], Response]) -> Response:
    """Call the endpoint; whatever it raises becomes the response that `refuse` makes."""
    try:
        return await endpoint(request)
    except RequestError as error:
        return refuse(error)
    except ClientDisconnect:
        # Nobody is there to read a response.
        return Response(status_code=400)
    except DatabaseBusyError:
        return refuse(RequestError("The server is busy. Try again in a moment.", status=503, retry_after=5))
    # The app's own hooks and the database may raise anything.
    except Exception as error:  # noqa: BLE001
        return refuse(RequestError(explain(error), status=500))


def plain_error(error: RequestError) -> Response:
    """The response whose text the client shows to its user."""
    return PlainTextResponse(str(error), status_code=error.status, headers=error_headers(error))


def json_error(error: RequestError) -> Response:
    """The same as JSON, with a code for programs."""
    content = {"error": str(error), "code": _CODES.get(error.status, "ERROR")}
    return JSONResponse(content, status_code=error.status, headers=error_headers(error))


def error_headers(error: RequestError) -> dict[str, str]:
    """The headers of a response with this error."""
    headers = {"cache-control": "no-store", **_STATUS_HEADERS.get(error.status, {})}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return headers
