"""`usechat doctor` against real Redis servers in the states that it looks for."""

import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import usechat.stores.redis
from support.certificates import write_certificate
from support.hang import HANG_SECONDS
from support.loopback import free_port
from support.redis_server import RedisServer
from usechat.cli import main, redis_checks
from usechat.cli.redis_checks import COMMANDS, Address, Finding, Missing, examine, find_missing

Levels = Callable[[str], dict[str, str]]
Run = Callable[..., tuple[Any, str, str]]


@contextmanager
def fit_server(**settings: str) -> Generator[int]:
    """A Redis that is fit, but for these settings; give its port."""
    wanted = {"maxmemory": "100mb", "repl-diskless-sync-delay": "0", **settings}
    options = [word for name, value in wanted.items() for word in (f"--{name}", value)]
    server = RedisServer(*options, aof=True)
    try:
        yield server.port
    finally:
        server.close()


@pytest.fixture(scope="module")
def plain() -> Iterator[int]:
    with fit_server() as port:
        yield port


@pytest.fixture
def admin(plain: int) -> Iterator[Any]:
    """Whoever may change the settings of the server; what they change holds for one test."""
    with Redis(port=plain, decode_responses=True) as typed:
        client: Any = typed
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "100mb")
        client.config_set("appendonly", "yes")
        client.config_set("appendfsync", "everysec")
        client.config_set("save", "")
        yield client


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command as it is typed: its exit code, output and errors."""
    monkeypatch.setenv("COLUMNS", "200")
    # How busy this machine is changes no finding.
    monkeypatch.setattr(redis_checks, "_SLOW_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(examine, "__defaults__", (HANG_SECONDS,))

    def run(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["usechat", "doctor", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return run


@pytest.fixture
def levels(doctor: Run) -> Levels:
    """The level of each check of a URL."""

    def run(url: str) -> dict[str, str]:
        code, out, _ = doctor("--store", url, "--json")
        report = json.loads(out)
        # No turn is tried where something is wrong already.
        assert report["ok"] == any(finding["check"] == "turn" for finding in report["findings"])
        found = {"turn": "ok"} | {finding["check"]: finding["level"] for finding in report["findings"]}
        assert report["ok"] == (code == 0) == ("problem" not in found.values())
        assert all(("remedy" in finding) == (finding["level"] != "ok") for finding in report["findings"])
        return found

    return run


STORE = Path(usechat.stores.redis.__file__).parent
CHECKS = (
    *("connection", "tls", "version", "role", "latency", "clock"),
    *("permissions", "persistence", "eviction", "memory", "turn"),
)
FIT = dict.fromkeys(CHECKS, "ok")
SLOW_SECONDS: float = vars(redis_checks)["_SLOW_SECONDS"]


def test_a_redis_that_is_fit_is_found_fit(admin: Any, plain: int, doctor: Run) -> None:
    code, out, err = doctor("--store", f"redis://127.0.0.1:{plain}/0")
    assert (code, err) == (0, "")
    assert re.sub(r"[\d.]+ (ms|s|GiB)\b", r"… \1", out).splitlines() == [
        f"ok       connection   The Redis at 127.0.0.1:{plain} replies.",
        "ok       tls          The connection stays on this computer.",
        f"ok       version      redis {admin.info()['redis_version']}.",
        "ok       role         This is a primary (standalone).",
        "ok       latency      A round trip takes … ms, at worst … ms of 20.",
        "ok       clock        Its clock and this computer's differ by … s.",
        "ok       permissions  This user may do all that the store does: 23 commands on usechat:*.",
        "ok       persistence  AOF, fsync everysec: a crash of Redis loses a second, which living workers send again.",
        "ok       eviction     noeviction: a full Redis refuses new turns and loses none.",
        "ok       memory       … GiB of … GiB are used.",
        "ok       turn         One worker wrote a turn, another one read and stopped it, in … ms.",
    ]
    assert admin.dbsize() == 0


def test_what_is_found_is_also_there_as_json(plain: int, doctor: Run, admin: Any) -> None:
    admin.config_set("maxmemory-policy", "allkeys-lru")
    code, out, _ = doctor("--store", f"redis://127.0.0.1:{plain}/0", "--json")
    report = json.loads(out)
    assert (code, report["ok"]) == (1, False)
    assert [finding for finding in report["findings"] if finding["check"] == "eviction"] == [
        {
            "check": "eviction",
            "level": "problem",
            "text": "allkeys-lru: a full Redis deletes running turns, and the claims that keep a chat to one turn.",
            "remedy": "Set maxmemory-policy noeviction. Do not keep turns in a Redis that is also a cache.",
        }
    ]


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"maxmemory-policy": "volatile-ttl"}, {"eviction": "problem"}),
        ({"maxmemory-policy": "allkeys-lfu", "maxmemory": "0"}, {"eviction": "warning", "memory": "warning"}),
        ({"maxmemory": "0"}, {"memory": "warning"}),
        ({"maxmemory": "1"}, {"memory": "problem"}),
        ({"appendonly": "no"}, {"persistence": "warning"}),
        ({"appendonly": "no", "save": "3600 1"}, {"persistence": "warning"}),
        ({"appendfsync": "always"}, {}),
    ],
)
def test_settings_that_lose_turns_are_found(
    settings: dict[str, str], found: dict[str, str], levels: Levels, admin: Any, plain: int
) -> None:
    for name, value in settings.items():
        admin.config_set(name, value)
    assert levels(f"redis://127.0.0.1:{plain}/0") == FIT | found


def test_a_replica_is_no_place_for_turns(levels: Levels, plain: int) -> None:
    with fit_server(replicaof=f"127.0.0.1 {plain}") as port:
        with Redis(port=port) as typed:
            replica: Any = typed
            while replica.info()["master_link_status"] != "up":
                time.sleep(0.01)
        assert levels(f"redis://127.0.0.1:{port}/0") == FIT | {"role": "problem"}


def test_a_node_of_a_cluster_is_no_place_for_turns(levels: Levels) -> None:
    with fit_server(**{"cluster-enabled": "yes"}) as port:
        assert levels(f"redis://127.0.0.1:{port}/0") == FIT | {"role": "problem"}


def allow(admin: Any, *rules: str) -> str:
    """Make a user with these rules, and give what stands for them in a URL."""
    admin.execute_command("ACL", "SETUSER", "ben", "reset", "on", ">s3cret", *rules)
    return "ben:s3cret"


MINIMAL = ("~usechat:*", "&usechat:*", *(f"+{command}" for command in COMMANDS))


def test_what_the_store_does_is_what_is_tried(admin: Any) -> None:
    sources = "".join(file.read_text("utf-8") for file in STORE.glob("*.py"))
    # Beside commands these are what scripts answer.
    words = set(re.findall(r"redis\.p?call\('([A-Z]+)'", sources)) | set(re.findall(r'b"([A-Z]+)"', sources))
    known: list[str] = admin.execute_command("COMMAND LIST")
    assert tuple(sorted({word.lower() for word in words} & set(known))) == COMMANDS


def test_the_fewest_permissions_are_enough(levels: Levels, admin: Any, plain: int) -> None:
    url = f"redis://{allow(admin, *MINIMAL)}@127.0.0.1:{plain}/0"
    unseen = {"persistence", "eviction", "memory"}
    assert levels(url) == {name: level for name, level in FIT.items() if name not in unseen} | {"settings": "warning"}
    url = f"redis://{allow(admin, *MINIMAL, '+info', '+config|get')}@127.0.0.1:{plain}/0"
    assert levels(url) == FIT


@pytest.mark.parametrize("rule", MINIMAL)
def test_each_permission_that_a_user_lacks_is_found(rule: str, admin: Any, plain: int) -> None:
    user = allow(admin, *(other for other in MINIMAL if other != rule))
    found = {finding.check: finding for finding in examine(f"redis://{user}@127.0.0.1:{plain}/0")}
    permissions = found["permissions"]
    assert (permissions.level, permissions.remedy) == ("problem", f"As an administrator: ACL SETUSER ben {rule}")
    # What the remedy says is one.
    admin.execute_command(*permissions.remedy.partition(": ")[2].split())
    with Address(f"redis://{user}@127.0.0.1:{plain}/0", HANG_SECONDS).connect() as client:
        assert find_missing(client) == Missing()
    assert admin.dbsize() == 0


def test_a_user_who_may_not_choose_the_database_is_told_so(levels: Levels, admin: Any, plain: int) -> None:
    [finding] = examine(f"redis://{allow(admin, *MINIMAL)}@127.0.0.1:{plain}/1")
    text = f"The Redis at 127.0.0.1:{plain} does not let this user choose database 1."
    assert (finding.level, finding.text) == ("problem", text)
    url = f"redis://{allow(admin, *MINIMAL, '+select', '+info', '+config|get')}@127.0.0.1:{plain}/1"
    assert levels(url) == FIT


def test_a_user_who_may_do_nothing_is_told_all_of_it(admin: Any, plain: int) -> None:
    found = examine(f"redis://{allow(admin)}@127.0.0.1:{plain}/0")
    [permissions] = [finding for finding in found if finding.check == "permissions"]
    # Nothing is added that could not be deleted.
    commands = ", ".join(command.upper() for command in COMMANDS if command != "sadd")
    assert permissions.text == f"This user may not run {commands}."


def test_a_clock_that_differs_is_told(levels: Levels, plain: int, admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    assert levels(f"redis://127.0.0.1:{plain}/0") == FIT | {"clock": "warning"}


def test_an_address_elsewhere_wants_tls_and_a_password(levels: Levels, plain: int, admin: Any) -> None:
    # The system reads this as loopback, and the doctor as the name of another computer.
    assert levels(f"redis://127.1:{plain}/0") == FIT | {"tls": "warning", "password": "problem"}
    admin.acl_setuser("ada", enabled=True, passwords=["+long"], categories=["+@all"], keys=["*"], channels=["*"])
    assert levels(f"redis://ada:long@127.1:{plain}/0") == FIT | {"tls": "warning"}


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("redis://nobody:s3cret@127.0.0.1:{port}", "The Redis at 127.0.0.1:{port} refuses the user or the password."),
        ("redis://:s3cret@127.0.0.1:{free}/1", "The Redis at 127.0.0.1:{free} cannot be reached: Connection refused."),
        (
            "redis://:s3cret@no-such.invalid",
            "The Redis at no-such.invalid:6379 cannot be reached: Name or service not known.",
        ),
        ("unix://:s3cret@/no/such.sock", "The Redis at /no/such.sock cannot be reached: No such file or directory."),
    ],
)
def test_a_redis_that_cannot_be_used_is_a_problem_without_the_password(
    url: str, line: str, doctor: Run, plain: int
) -> None:
    ports = {"port": plain, "free": free_port()}
    code, out, err = doctor("--store", url.format(**ports))
    assert (code, out.splitlines()[0], err) == (1, f"problem  connection  {line.format(**ports)}", "")
    assert "s3cret" not in out


@pytest.mark.parametrize(
    "url", ["memory", "http://:s3cret@localhost", "redis://:s3cret@host:s3cret", "redis://:s3cret@host/0?s3cret=s3cret"]
)
def test_what_is_no_url_of_a_redis_is_refused(url: str, doctor: Run) -> None:
    code, out, err = doctor("--store", url)
    assert (code, out, "s3cret" in err, err.count("\n")) == (2, "", False, 1)


@contextmanager
def answering(reply: bytes) -> Generator[int]:
    """Something that gives one answer to all that it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        while connection.recv(4096):
                            connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(HANG_SECONDS)


def test_a_redis_that_does_not_answer_is_waited_for_with_a_bound() -> None:
    with answering(b"") as port:
        assert examine(f"redis://127.0.0.1:{port}/?socket_timeout=1000", seconds=0.05) == [
            Finding(
                "connection",
                "problem",
                f"The Redis at 127.0.0.1:{port} did not reply within 0.05 seconds.",
                "Check for a firewall in between.",
            )
        ]


def test_what_is_no_redis_is_told() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        [finding] = examine(f"redis://127.0.0.1:{port}")
    assert (finding.level, finding.text) == ("problem", f"What replies at 127.0.0.1:{port} is not a Redis.")


def test_a_redis_that_does_not_know_the_first_command_is_too_old() -> None:
    with answering(b"-ERR unknown command\r\n") as port:
        found = {finding.check: finding for finding in examine(f"redis://127.0.0.1:{port}")}
    assert (found["version"].level, found["version"].text) == ("problem", "redis before 6 is too old for the store.")


Carry = Callable[[socket.socket, socket.socket], None]


def from_far_away(client: socket.socket, server: socket.socket) -> None:
    """What the server says comes later."""
    threading.Thread(target=copy, args=(client, server), daemon=True).start()
    copy(server, client, 0.012)


def one_by_one(client: socket.socket, server: socket.socket) -> None:
    """Each question has an answer, and nothing comes that was not asked for."""
    while asked := client.recv(65536):
        server.sendall(asked)
        client.sendall(server.recv(65536))


def copy(source: socket.socket, target: socket.socket, later: float = 0) -> None:
    with suppress(OSError):
        while some := source.recv(65536):
            time.sleep(later)
            target.sendall(some)


@contextmanager
def proxy(port: int, carry: Carry) -> Generator[int]:
    """Something before a server; give its port."""

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server, suppress(OSError):
            carry(client, server)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(HANG_SECONDS)


def test_a_redis_far_away_is_told(levels: Levels, plain: int, admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_checks, "_SLOW_SECONDS", SLOW_SECONDS)
    with proxy(plain, from_far_away) as port:
        assert levels(f"redis://127.0.0.1:{port}/0") == FIT | {"latency": "warning"}


def test_a_proxy_that_knows_no_subscriptions_is_found_by_trying_a_turn(plain: int, admin: Any) -> None:
    with proxy(plain, one_by_one) as port:
        found = examine(f"redis://127.0.0.1:{port}/0", seconds=1)
    assert {finding.check: finding.level for finding in found} == FIT | {"turn": "problem"}
    assert admin.dbsize() == 0


def test_tls_is_checked_as_the_store_checks_it(levels: Levels, doctor: Run, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    secured = free_port()
    files = {"tls-cert-file": str(certificate), "tls-key-file": str(key), "tls-ca-cert-file": str(certificate)}
    with fit_server(**{"tls-port": str(secured), "tls-auth-clients": "no"}, **files):
        assert levels(f"rediss://localhost:{secured}/0?ssl_ca_certs={certificate}") == FIT
        assert levels(f"rediss://localhost:{secured}/0?ssl_cert_reqs=none") == FIT | {"tls": "warning"}
        code, out, _ = doctor("--store", f"rediss://localhost:{secured}/0")
        line = f"problem  connection  The Redis at localhost:{secured} has no certificate that is trusted here."
        assert (code, out.splitlines()[0]) == (1, line)
        [finding] = examine(f"rediss://localhost:{secured}/0?ssl_ca_certs={tmp_path}/none.crt")
        text = "A file that the URL names does not exist."
        assert (finding.level, finding.text) == ("problem", text)
    with fit_server(**{"tls-port": str(secured), "tls-auth-clients": "yes"}, **files):
        [finding] = examine(f"rediss://localhost:{secured}/0?ssl_ca_certs={certificate}")
        text = f"The Redis at localhost:{secured} closed the connection, as it does without a client certificate."
        assert (finding.level, finding.text) == ("problem", text)
        of_client = f"ssl_certfile={certificate}&ssl_keyfile={key}"
        assert levels(f"rediss://localhost:{secured}/0?ssl_ca_certs={certificate}&{of_client}") == FIT
