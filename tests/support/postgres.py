"""A PostgreSQL server of the test run's own, which only its Unix socket reaches, and databases in it."""

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Debian's own, before those of the same names that look for them each time.
_PROGRAMS = os.pathsep.join([*map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"))), os.environ["PATH"]])
_SETTINGS = "-c listen_addresses= -c unix_socket_directories='$PWD' -c fsync=off -c full_page_writes=off"
_SERVE = f"""
initdb --no-sync --no-instructions --auth trust --username usechat --encoding UTF8 --locale C data > initdb.log 2>&1 &&
pg_ctl start --wait --silent --pgdata data --log server.log --options "{_SETTINGS}" &&
echo ready &&
cat
pg_ctl stop --silent --mode immediate --pgdata data
"""


class Postgres:
    """A server that stops when whoever started it ends, however it ends."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="usechat-"))
        self._numbers = itertools.count(1)
        self._process = subprocess.Popen(
            ["sh", "-c", _SERVE],  # noqa: S607
            cwd=self._directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PATH": _PROGRAMS},
            # The keys that interrupt the tests would leave the server without the shell that stops it.
            start_new_session=True,
            **self._owner(),
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("\n".join(log.read_text("utf-8") for log in sorted(self._directory.glob("*.log"))))

    def create(self) -> str:
        """Create an empty database and give its URL."""
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name}")
        return f"postgresql://usechat@/{name}?host={self._directory}"

    def create_tables(self) -> str:
        """Give the URL of a user who has tables of their own, none yet, in a database that is there already.

        That takes a tenth of the time, and is enough for who looks at nothing but tables.
        """
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE USER {name}", f"CREATE SCHEMA AUTHORIZATION {name}")
        return f"postgresql://{name}@/postgres?host={self._directory}"

    def _execute(self, *statements: str) -> None:
        command = [
            "psql",
            "--no-psqlrc",
            "--quiet",
            "--host",
            str(self._directory),
            "--username",
            "usechat",
            "postgres",
        ]
        options = [option for statement in statements for option in ("--command", statement)]
        environ = {**os.environ, "PATH": _PROGRAMS}
        subprocess.run([*command, "--set", "ON_ERROR_STOP=1", *options], check=True, env=environ)

    @property
    def socket(self) -> Path:
        return self._directory / ".s.PGSQL.5432"

    @contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Let none of its processes run, as on a machine that hangs."""
        server = int((self._directory / "data" / "postmaster.pid").read_text("utf-8").split()[0])
        # First the one that starts the others.
        os.kill(server, signal.SIGSTOP)
        children = Path(f"/proc/{server}/task/{server}/children").read_text("ascii").split()
        processes = [*map(int, children), server]
        try:
            for process in processes:
                os.kill(process, signal.SIGSTOP)
            yield
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)

    def close(self) -> None:
        self._process.communicate()
        shutil.rmtree(self._directory)

    def _owner(self) -> dict[str, Any]:
        """Who runs the server: it refuses to be root's."""
        if os.geteuid() != 0:
            return {}
        user = pwd.getpwnam("postgres")
        os.chown(self._directory, user.pw_uid, user.pw_gid)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
