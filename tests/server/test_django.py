import re
import signal
import sys
from pathlib import Path

import httpx

from support.hang import HANG_SECONDS
from support.loopback import (
    ABORTED,
    STEP,
    answer_status,
    ask,
    asking,
    free_port,
    last_two,
    parts,
    read_until,
    running,
    text_part,
    until,
)

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "django.md"
BLOCK = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)

SETTINGS = """\
SECRET_KEY = "only-for-this-test"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "urls"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
"""

URLS = """\
from django.contrib.auth import aget_user, alogin, get_user_model
from django.http import HttpResponse
from django.urls import path

async def enter(request, name):
    user, _ = await get_user_model().objects.aget_or_create(username=name)
    await alogin(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return HttpResponse("welcome")

async def home(request):
    return HttpResponse(str(await aget_user(request)))

urlpatterns = [path("enter/<name>", enter), path("api/chatter", home)]
"""

MIGRATE = "import os, django; os.environ['DJANGO_SETTINGS_MODULE'] = 'settings'; django.setup(); \
from django.core.management import call_command; call_command('migrate', verbosity=0)"

WAITING = """\
from usechat.server.app import create_app

async def agent(chat):
    yield "I begin"
    await chat.stopping.wait()

app = create_app(agent)
"""


def write_site(folder: Path) -> None:
    """The code of the guide, in a small site."""
    (folder / "settings.py").write_text(SETTINGS)
    (folder / "urls.py").write_text(URLS)
    for name, code in BLOCK.findall(GUIDE.read_text()):
        (folder / name).write_text(code)
    with running([sys.executable, "-c", MIGRATE], folder) as process:
        assert process.wait() == (0, ""), process.errors()


def test_the_guide_serves_a_chat_beside_django_to_whoever_is_signed_in_there(tmp_path: Path) -> None:
    write_site(tmp_path)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running([sys.executable, "-m", "uvicorn", "--port", str(port), "asgi:application"], tmp_path) as process:
        until(lambda: httpx.get(f"{url}/api/chatter", timeout=HANG_SECONDS).text == "AnonymousUser", process)
        ann, bob = (httpx.Client(base_url=url, timeout=HANG_SECONDS) for _ in range(2))
        with ann, bob:
            assert [ann.get("/enter/ann").text, ann.get("/api/chatter").text] == ["welcome", "ann"]
            bob.get("/enter/bob")
            assert (ask(f"{url}/api/chat").status_code, ann.get("/api/chat").status_code) == (401, 405)
            answer = ask(f"{url}/api/chat", cookies=dict(ann.cookies))
            assert parts(answer.text) == [STEP, text_part("You said: Hello")], process.errors()
            listed = [client.get("/api/chats").json()["chats"] for client in (ann, bob)]
            assert [[chat["id"] for chat in chats] for chats in listed] == [["chat"], []]
            assert [client.get("/api/chat/chat/messages").status_code for client in (ann, bob)] == [200, 200]
            assert (len(ann.get("/api/chat/chat/messages").json()), bob.get("/api/chat/chat/messages").json()) == (
                2,
                [],
            )


def test_answers_stream_and_end_legally_when_the_server_is_stopped(tmp_path: Path) -> None:
    write_site(tmp_path)
    (tmp_path / "chat.py").write_text(WAITING)
    port = free_port()
    chat = f"http://127.0.0.1:{port}/api/chat"
    with running([sys.executable, "-m", "uvicorn", "--port", str(port), "asgi:application"], tmp_path) as process:
        until(lambda: httpx.get(f"{chat}/chat/stream", timeout=HANG_SECONDS).status_code == 204, process)
        with asking(chat) as lines:
            first = read_until(lines, "I begin")
            process.send(signal.SIGTERM)
            until(lambda: answer_status(chat, chat="another") == 503, process)
            process.send(signal.SIGTERM)
            rest = "\n".join(lines)
        assert parts(f"{first}\n{rest}\n\n") == [STEP, text_part("I begin")]
        assert last_two(rest) == ABORTED
        assert process.wait()[0] == -signal.SIGTERM
