"""The border of a route: whatever goes wrong behind it becomes an answer that says what a stranger may know."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from usechat.errors import DatabaseBusyError, RequestError
from usechat.turns.failures import explain

__all__ = ["Answer", "guarded"]

Answer: TypeAlias = Callable[[Request], Awaitable[Response]]


async def guarded(answer: Answer, request: Request, refuse: Callable[[RequestError], Response]) -> Response:
    """Answer the request; `refuse` makes the answer that says why not."""
    try:
        return await answer(request)
    except RequestError as error:
        return refuse(error)
    except ClientDisconnect:
        # Nobody is there to read an answer.
        return Response(status_code=400)
    except DatabaseBusyError:
        return refuse(RequestError("The server is busy. Try again in a moment.", status=503, retry_after=5))
    # The app's own hooks and the database may raise anything.
    except Exception as error:  # noqa: BLE001
        return refuse(RequestError(explain(error), status=500))
