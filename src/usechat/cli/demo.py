"""`usechat demo`: the product tour."""

import os

import typer

from usechat.cli.options import ListenSettings, command_of, refuse, refusing

__all__ = ["demo"]


@command_of(ListenSettings)
def demo(settings: ListenSettings) -> None:
    """Serve a page with demo agents of each kind. They need no API key and no network."""
    if not settings.local:
        refuse(f"The demo signs in everybody who opens its page, so it cannot listen at {settings.host}.")
    with refusing("usechat demo", "server"):
        from usechat.cli.listening import listen, serve
        from usechat.demo.app import make_demo
        from usechat.server.origins import LOOPBACK_HOSTS
        from usechat.server.page import BUILT

        listener = listen(settings)
        made = make_demo(hosts=(*LOOPBACK_HOSTS, settings.netloc), environ=os.environ)
        made.app.state.exit_hard = True
        width = max(len(agent.name) for agent in made.agents)
        agents = "".join(f"  {agent.name:{width}}  {agent.about}\n" for agent in made.agents)
        missing = "".join(f"{sentence}\n" for sentence in made.missing)
        is_built = (BUILT / "index.html").is_file()
        unbuilt = "" if is_built else "Its page is not built: make page builds it, with Node 20.\n"
        typer.echo(
            f"The usechat demo is at http://{settings.netloc}:{listener.getsockname()[1]}\n\n{agents}\n"
            f"{missing}{unbuilt}Chats are kept in memory. Only this computer can connect. Ctrl-C stops it.\n"
        )
        serve(made.app, listener)
