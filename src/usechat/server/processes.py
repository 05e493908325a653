"""How many processes serve an app, as far as one of them can see it."""

import multiprocessing
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["count_processes"]

# The servers that have workers, and the variable that says how many if their command does not. uvicorn is not among
# them, because it tells.
_SERVERS: Final = {
    "gunicorn": "WEB_CONCURRENCY",
    "hypercorn": "",
    "granian": "GRANIAN_WORKERS",
    "usechat": "USECHAT_WORKERS",
}
_WORKERS: Final = re.compile(r"(?:^|\0)(?:-w\0?|--workers[\0=])([0-9]{1,4})(?:\0|$)")


def count_processes(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Give the number of processes that the server of this command line runs; 1 if it cannot be seen."""
    if (config := _uvicorn_config()) is not None:
        return 1 if config.should_reload else config.workers
    program = Path(argv[0])
    name = program.parent.name if program.stem == "__main__" else program.stem
    if name not in _SERVERS:
        return 1
    words = [*argv[1:], *shlex.split(environ.get("GUNICORN_CMD_ARGS", ""))] if name == "gunicorn" else argv[1:]
    found = _WORKERS.search("\0".join(words))
    said = found[1] if found else environ.get(_SERVERS[name], "")
    return int(said) if said.isascii() and said.isdecimal() else 1


def _uvicorn_config() -> Any:
    """The settings of uvicorn that this process was started with, if it is one of uvicorn's own."""
    # Where the number of workers is an argument of `uvicorn.run`, nothing else has it.
    return getattr(multiprocessing.current_process(), "_kwargs", {}).get("config")
