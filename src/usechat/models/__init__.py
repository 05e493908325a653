"""What the APIs of models take, made of the messages for a model: `await chat.model_messages()`."""

from usechat.models.anthropic import to_anthropic
from usechat.models.langchain import to_langchain
from usechat.models.openai import to_openai
from usechat.models.responses import to_openai_responses

__all__ = ["to_anthropic", "to_langchain", "to_openai", "to_openai_responses"]
