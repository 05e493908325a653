"""AG-UI: any agent that speaks the protocol over HTTP and server-sent events."""

from usechat.integrations.ag_ui.agent import AGUIAgent

__all__ = ["AGUIAgent"]
