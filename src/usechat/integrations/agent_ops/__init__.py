"""Agent Ops sessions."""
