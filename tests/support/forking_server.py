"""Serves chats from child processes: one for each line that comes in, whose process id and port go out."""

import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator

import uvicorn

from usechat.server.app import create_app
from usechat.turns.chat import Chat


async def agent(chat: Chat) -> AsyncGenerator[str, None]:
    for number in range(20):
        yield f"{chat.text} {number}, "


def main(url: str) -> None:
    """Fork, since to import everything anew for each child would take longer than the child lives."""
    config = uvicorn.Config(create_app(agent, history=url), log_level="critical")
    config.load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                uvicorn.Server(config).run(sockets=[listener])
                return
            sys.stdout.write(f"{child} {listener.getsockname()[1]}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
