"""The sources whose events a log can hold."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from usechat.events import Mapper
from usechat.events.mapper import TranslatingMapper
from usechat.integrations.agent_ops import options as agent_ops
from usechat.integrations.agent_ops.translator import AgentOpsLog
from usechat.integrations.deepagent_sdk import translator as deepagent_sdk
from usechat.integrations.langgraph import translator as langgraph
from usechat.integrations.open_harness import translator as open_harness
from usechat.protocol.writer import MessageWriter

__all__ = ["SOURCES", "Source"]

Source: TypeAlias = Callable[[MessageWriter, Mapping[str, Any]], Mapper[dict[str, Any]]]

SOURCES: Final[dict[str, Source]] = {
    "open-harness": lambda writer, options: TranslatingMapper(
        open_harness.OpenHarnessTranslator(open_harness.read_options(options)), writer
    ),
    "agent-ops": lambda writer, options: TranslatingMapper(AgentOpsLog(agent_ops.read_options(options)), writer),
    "deep-agent": lambda writer, options: TranslatingMapper(
        deepagent_sdk.DeepAgentLog(deepagent_sdk.read_options(options)), writer
    ),
    "langgraph": lambda writer, options: TranslatingMapper(
        langgraph.LangGraphTranslator(langgraph.read_options(options)), writer
    ),
}
"""The sources by name; each raises ValueError for an option that it does not have."""
