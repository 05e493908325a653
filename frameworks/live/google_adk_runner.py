"""Google ADK with a runner of the app's own, whose sessions are in a database."""

from pathlib import Path

from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from live.google_adk import agent as main_agent

__all__ = ["agent"]

agent = Runner(
    app_name="rows",
    agent=main_agent,
    session_service=SqliteSessionService(f"{Path.home()}/sessions.db"),
)
