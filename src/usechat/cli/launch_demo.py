"""Runs `usechat demo`: makes the app and hands it to uvicorn."""

import os
from collections.abc import Callable

from usechat.cli.listening import listen, serve
from usechat.cli.settings import ListenSettings
from usechat.demo.app import Demo, make_demo
from usechat.server.origins import LOOPBACK_HOSTS
from usechat.server.page import BUILT

__all__ = ["run"]


def run(settings: ListenSettings, announce: Callable[[str], None]) -> None:
    """Announce where the demo is, and serve it until a signal comes.

    Raises:
        ServeError: There is no way to serve it.
    """
    listener = listen(settings)
    made = make_demo(hosts=(*LOOPBACK_HOSTS, settings.netloc), environ=os.environ)
    made.app.state.exit_hard = True
    announce(_banner(made, f"http://{settings.netloc}:{listener.getsockname()[1]}"))
    serve(made.app, settings, listener)


def _banner(made: Demo, url: str) -> str:
    width = max(len(agent.name) for agent in made.agents)
    agents = "".join(f"  {agent.name:{width}}  {agent.about}\n" for agent in made.agents)
    missing = "".join(f"{sentence}\n" for sentence in made.missing)
    unbuilt = "" if (BUILT / "index.html").is_file() else "Its page is not built: make page builds it, with Node 20.\n"
    return (
        f"The usechat demo is at {url}\n\n{agents}\n{missing}{unbuilt}"
        "Chats are kept in memory. Only this computer can connect. Ctrl-C ends it.\n"
    )
