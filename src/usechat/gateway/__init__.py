"""Agent Ops sessions: who may use which of them, and from where that is known."""
