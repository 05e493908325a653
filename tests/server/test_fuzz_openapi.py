"""What schemathesis makes of the router's own documentation is served, or refused as the documentation says."""

from collections.abc import AsyncGenerator
from typing import Any, Final
from urllib.parse import unquote

import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from support.loopback import serving
from support.soak import SEED, draws
from usechat.server.endpoint import ChatEndpoint
from usechat.turns.chat import Chat

REQUESTS: Final = draws(8, 20)


async def agent(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"You said: {chat.text[:20]!r}"


def send_some(operation: Any, url: str, documented: dict[str, Any]) -> None:
    @seed(SEED)
    @settings(
        max_examples=REQUESTS,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(operation.as_strategy())
    def send(case: Any) -> None:
        # A route does not take these, so that the app itself answers.
        assume("\n" not in unquote(case.path_parameters.get("chat_id", "")))
        response = case.call(base_url=url)
        answer = documented[str(response.status_code)]
        kind = response.headers.get("content-type", [""])[0].partition(";")[0]
        assert kind in answer.get("content", {"": None})

    send()


def test_what_the_documentation_allows_is_served_or_refused_as_it_says() -> None:
    app = FastAPI()
    app.include_router(ChatEndpoint(agent).router())
    paths = app.openapi()["paths"]
    schema: Any = schemathesis.openapi.from_dict(app.openapi())
    operations = [result.ok() for result in schema.get_all_operations()]
    assert [operation.path for operation in operations] == list(paths)
    with serving(app) as url:
        for operation in operations:
            try:
                send_some(operation, url, paths[operation.path][operation.method]["responses"])
            except BaseException as error:
                error.add_note(f"{operation.path}, USECHAT_SEED={SEED}")
                raise
