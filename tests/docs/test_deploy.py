"""The configuration of docs/guides/deploy.md and examples/production is read by what it is for, and fits together.

Docker and Kubernetes are not here: their files are parsed, and compared with what they name.
"""

import json
import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from support.certificates import write_certificate
from support.loopback import STEP, ask, parts, serving, text_part
from support.redis_server import SECRET, RedisServer
from usechat.cli.redis_checks import COMMANDS

ROOT: Final = Path(__file__).parents[2]
EXAMPLE: Final = ROOT / "examples" / "production"
GUIDE: Final = (ROOT / "docs/guides/deploy.md").read_text("utf-8")
BLOCK: Final = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
APP: Final = (EXAMPLE / "app.py").read_text("utf-8")
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text("utf-8"))
WORKERS: Final = ["worker-1", "worker-2"]
# What a process may take after its grace, as usechat.server.draining has it.
LAST_SECONDS: Final = 8
NGINX: Final = """
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  scgi_temp_path {folder}; uwsgi_temp_path {folder};
  {config}
}}
"""


def blocks(language: str) -> list[str]:
    return [block for name, block in BLOCK.findall(GUIDE) if name == language]


def environment() -> set[str]:
    """What the app of the example reads."""
    return set(re.findall(r'os\.environ\["(\w+)"\]', APP))


def grace() -> int:
    [found] = re.findall(r"grace=(\d+)", APP)
    return int(found)


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def judge_of_nginx(config: str, folder: Path) -> str:
    """What a real nginx says of a configuration, whose workers have addresses here."""
    for worker in WORKERS:
        config = config.replace(worker, "127.0.0.1")
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, config=config), "utf-8")
    environ = {**os.environ, "PATH": f"{os.environ['PATH']}{os.pathsep}/usr/sbin"}
    command = ["nginx", "-t", "-q", "-c", file]
    told = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    return f"{told.returncode} {told.stderr}"


def test_nginx_takes_what_the_guide_says(tmp_path: Path) -> None:
    whole, tls = blocks("nginx")
    assert whole == (EXAMPLE / "nginx.conf").read_text("utf-8")
    assert judge_of_nginx(whole, tmp_path) == "0 "
    certificate, key = write_certificate(tmp_path)
    tls = tls.replace("/etc/ssl/chat.crt", str(certificate)).replace("/etc/ssl/chat.key", str(key))
    assert judge_of_nginx(whole.replace("listen 80;", tls), tmp_path) == "0 "
    assert judge_of_nginx(whole.replace("proxy_read_timeout", "proxy_reed_timeout"), tmp_path).startswith("1 ")


def test_the_parts_of_the_compose_file_fit_together() -> None:
    services = COMPOSE["services"]
    assert list(services) == [*WORKERS, "nginx", "redis", "database"]
    for name in WORKERS:
        worker = services[name]
        assert set(worker["environment"]) == environment()
        assert (EXAMPLE / worker["build"]["context"]).resolve() == ROOT
        assert (ROOT / worker["build"]["dockerfile"]).resolve() == EXAMPLE / "Dockerfile"
        assert set(worker["depends_on"]) == {"redis", "database"}
        assert seconds(worker["stop_grace_period"]) > grace() + LAST_SECONDS
    assert set(services["nginx"]["depends_on"]) == set(WORKERS)
    assert re.findall(r"server (\S+):8000", (EXAMPLE / "nginx.conf").read_text("utf-8")) == WORKERS
    mounted = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", ())]
    assert {name for name in mounted if not name.startswith("./")} == set(COMPOSE["volumes"])
    assert all((EXAMPLE / name).is_file() for name in mounted if name.startswith("./"))
    [port] = services["nginx"]["ports"]
    assert port.startswith("127.0.0.1:")


def test_the_guide_makes_each_secret_that_compose_wants(tmp_path: Path) -> None:
    wanted = set(re.findall(r"\$\{(\w+):\?\}", (EXAMPLE / "compose.yaml").read_text("utf-8")))
    [script] = [block for block in blocks("sh") if "docker compose" in block]
    making = script[script.index("printf") : script.index("docker compose")]
    subprocess.run(["sh", "-ec", making], cwd=tmp_path, check=True)  # noqa: S607
    lines = [line.partition("=") for line in (tmp_path / ".env").read_text("utf-8").splitlines()]
    assert {name: len(value) for name, _, value in lines} == {
        name: 64 if name == "CHAT_SECRET" else 32 for name in wanted
    }


def test_the_image_has_what_it_starts() -> None:
    lines = [line for line in (EXAMPLE / "Dockerfile").read_text("utf-8").splitlines() if line and line[0] != "#"]
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert all((ROOT / name).exists() for name in copied)
    [command] = [json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD ")]
    assert command == ["usechat", "serve", "app:app", "--host", "0.0.0.0", "--log-format", "json"]  # noqa: S104


def test_the_parts_of_the_kubernetes_file_fit_together() -> None:
    [text] = blocks("yaml")
    kinds: dict[str, Any] = {document["kind"]: document for document in yaml.safe_load_all(text)}
    assert list(kinds) == ["Secret", "Deployment", "Service", "PodDisruptionBudget"]
    spec = kinds["Deployment"]["spec"]
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    [container] = pod["containers"]
    assert (
        spec["selector"]["matchLabels"]
        == labels
        == kinds["Service"]["spec"]["selector"]
        == kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
        == pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    )
    assert set(kinds["Secret"]["stringData"]) == environment()
    assert container["envFrom"] == [{"secretRef": {"name": kinds["Secret"]["metadata"]["name"]}}]
    assert kinds["PodDisruptionBudget"]["spec"]["minAvailable"] < spec["replicas"]
    wait = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > wait + grace() + LAST_SECONDS
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    [port] = [port["containerPort"] for port in container["ports"]]
    assert probes == {
        "startupProbe": {"path": "/healthz", "port": port},
        "livenessProbe": {"path": "/healthz", "port": port},
        "readinessProbe": {"path": "/readyz", "port": port},
    }
    assert [entry["targetPort"] for entry in kinds["Service"]["spec"]["ports"]] == [port]


def rules_of(text: str) -> list[str]:
    return re.findall(r"(?<![\w|])[~&]usechat:\*|(?<![\w|])\+[a-z]+(?![a-z|])", text)


def test_the_user_in_redis_has_what_the_store_needs_and_no_more(tmp_path: Path) -> None:
    needed = ["~usechat:*", "&usechat:*", *(f"+{command}" for command in COMMANDS)]
    [guide] = [block for block in blocks("") if block.startswith("ACL SETUSER")]
    assert rules_of(guide) == needed
    assert rules_of((EXAMPLE / "run.py").read_text("utf-8")) == needed
    program, config, *options = COMPOSE["services"]["redis"]["command"]
    assert (program, config) == ("redis-server", "/etc/redis.conf")
    assert options == ["--user", "default", "off", "--user", "usechat", "on", ">${REDIS_PASSWORD:?}", *needed]


def test_the_app_of_the_guide_is_an_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    [program] = blocks("python")
    assert set(re.findall(r'os\.environ\["(\w+)"\]', program)) == environment()
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/chats.db")
    monkeypatch.setenv("CHAT_SECRET", SECRET)
    monkeypatch.setenv("CHAT_TOKEN", "token")
    (tmp_path / "app.py").write_text(program, "utf-8")
    with serving(runpy.run_path(str(tmp_path / "app.py"))["app"]) as url:
        assert ask(f"{url}/api/chat").status_code == 401
        told = parts(ask(f"{url}/api/chat", headers={"authorization": "Bearer token"}).text)
    assert told == [STEP, text_part("Hello.")]
