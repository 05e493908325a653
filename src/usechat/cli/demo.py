"""`usechat demo`: the product tour."""

from typing import Final

import typer

from usechat.cli.refusal import refuse
from usechat.cli.settings import ListenSettings, ServeError
from usechat.cli.shared_options import Host, Port
from usechat.extras import missing

__all__ = ["demo"]

_DEFAULT: Final = ListenSettings()


def demo(*, host: Host = _DEFAULT.host, port: Port = _DEFAULT.port) -> None:
    """Serve a page with an agent of each kind, on this computer; they need neither a key nor a network."""
    settings = ListenSettings(host=host, port=port)
    if not settings.local:
        refuse(f"The demo is for this computer only, not for {host}: whoever opens its page is signed in.")
    try:
        from usechat.cli.launch_demo import run
    except ModuleNotFoundError as error:
        refuse(missing("usechat demo", error, "server"))
    try:
        run(settings, typer.echo)
    except ServeError as error:
        refuse(str(error))
