"""Real models, for users with a key: the chat as the model takes it, and its words as they come."""

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from usechat.errors import AgentError
from usechat.models import to_anthropic, to_openai
from usechat.server.page import PageAgent
from usechat.turns.chat import Chat

__all__ = ["Model", "find_models"]

_PROMPTS: Final = ("Why does the sea rise twice a day?", "Write a limerick about a harbour")

_Agent: TypeAlias = Callable[[Chat], AsyncGenerator[str, None]]

_OPENAI_MODEL: Final = "gpt-5-mini"
_ANTHROPIC_MODEL: Final = "claude-sonnet-5"
_MOST_TOKENS: Final = 8192


class Model(NamedTuple):
    """A model that the environment has a key for. `make` needs the `package`."""

    page: PageAgent
    package: str
    make: Callable[[], _Agent]


def find_models(environ: Mapping[str, str]) -> list[Model]:
    """The models that can be asked: by OPENAI_API_KEY or OPENAI_BASE_URL, and by ANTHROPIC_API_KEY."""
    found: list[Model] = []

    def add(name: str, package: str, make: Callable[[], _Agent]) -> None:
        about = "A real model, asked with the key in your environment."
        found.append(Model(PageAgent(path=f"/api/{package}", name=name, about=about, prompts=_PROMPTS), package, make))

    if environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL"):
        model = environ.get("OPENAI_MODEL") or _OPENAI_MODEL
        add(f"OpenAI {model}", "openai", lambda: _ask_openai(model, environ))
    if environ.get("ANTHROPIC_API_KEY"):
        claude = environ.get("ANTHROPIC_MODEL") or _ANTHROPIC_MODEL
        add(f"Anthropic {claude}", "anthropic", lambda: _ask_anthropic(claude, environ))
    return found


def _ask_openai(model: str, environ: Mapping[str, str]) -> _Agent:
    from openai import AsyncOpenAI, OpenAIError

    # A server of your own may need no key, but the package insists on one.
    key, url = environ.get("OPENAI_API_KEY") or "none", environ.get("OPENAI_BASE_URL") or None

    async def agent(chat: Chat) -> AsyncGenerator[str, None]:
        messages = to_openai(await chat.model_messages())
        try:
            async with (
                AsyncOpenAI(api_key=key, base_url=url) as client,
                client.chat.completions.stream(model=model, messages=messages) as stream,
            ):
                async for event in stream:
                    if event.type == "content.delta":
                        yield event.delta
        except OpenAIError as error:
            raise AgentError(_explain(model, error)) from error

    return agent


def _ask_anthropic(model: str, environ: Mapping[str, str]) -> _Agent:
    from anthropic import AnthropicError, AsyncAnthropic

    key, url = environ["ANTHROPIC_API_KEY"], environ.get("ANTHROPIC_BASE_URL") or None

    async def agent(chat: Chat) -> AsyncGenerator[str, None]:
        request = to_anthropic(await chat.model_messages())
        try:
            async with (
                AsyncAnthropic(api_key=key, base_url=url) as client,
                client.messages.stream(model=model, max_tokens=_MOST_TOKENS, **request) as stream,
            ):
                async for text in stream.text_stream:
                    yield text
        except AnthropicError as error:
            raise AgentError(_explain(model, error)) from error

    return agent


def _explain(model: str, error: Exception) -> str:
    """What the user reads. The texts of these errors may hold a part of the key."""
    status = getattr(error, "status_code", None)
    return f"{model} cannot be asked: {type(error).__name__ if status is None else f'its server answered {status}'}."
