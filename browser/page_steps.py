"""What the tests of the page do in it, again and again."""

from typing import Any, Final

import httpx

from chromium import Tab
from support.hang import HANG_SECONDS
from support.loopback import message

__all__ = ["ANSWERED", "BOX", "LAST", "PHONE", "STATUS", "WIDE", "ask", "button", "chat_of", "kept", "release", "say"]

BOX: Final = 'role=textbox[name="Message"]'
STATUS: Final = 'role=status >> text="{}"'
ANSWERED: Final = STATUS.format("The assistant has answered.")
LAST: Final = 'role=article[name="Assistant"] >> nth=-1'
PHONE: Final[dict[str, Any]] = {"viewport": {"width": 390, "height": 844}, "hasTouch": True}
WIDE: Final[dict[str, Any]] = {
    "viewport": {"width": 1440, "height": 900},
    "permissions": ["clipboard-read", "clipboard-write"],
}


def button(name: str) -> str:
    return f'role=button[name="{name}"]'


def say(tab: Tab, text: str) -> None:
    tab.fill(BOX, text)
    tab.press(BOX, "Enter")


def ask(tab: Tab, text: str) -> str:
    """Send a message, and give the text of the answer when it is whole."""
    say(tab, text)
    tab.wait_for_attached(ANSWERED)
    return tab.wait_for(LAST)


def chat_of(tab: Tab) -> str:
    return tab.run("new URLSearchParams(location.search).get('chat')")


def kept(url: str, chat: str) -> list[dict[str, Any]]:
    return httpx.get(f"{url}/api/chat/{chat}/messages", timeout=HANG_SECONDS).json()


def release(url: str, name: str) -> None:
    httpx.post(f"{url}/api/chat", json=message(f"release {name}", f"release {name}"), timeout=HANG_SECONDS)
