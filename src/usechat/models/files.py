"""Texts and files of messages: what is in a data URL, and the words for a file that an API does not take."""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from msgspec import Struct

__all__ = ["Block", "File", "blocks", "read_file", "text_block"]

Block = dict[str, Any]

_IMAGES: Final = ("image/gif", "image/jpeg", "image/png", "image/webp")


class File(Struct):
    """A file: `data` is in it, or `url` says where it is, or `ids` what it is called where it was uploaded."""

    media_type: str
    name: str = ""
    data: bytes = b""
    url: str = ""
    ids: Mapping[str, Any] = {}

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()

    @property
    def text(self) -> str:
        """The text of a text file; empty for any other."""
        is_text = self.media_type.startswith("text/") or self.media_type == "application/json"
        text = self.data.decode(errors="replace") if is_text else ""
        return text if text.strip() else ""

    @property
    def named_text(self) -> str:
        """The text of a text file, with its name."""
        return f'The file "{self.name}":\n\n{self.text}' if self.name else self.text

    @property
    def is_image(self) -> bool:
        """Whether it is an image that both APIs take. Of `image/*`, only those who fetch it know what it is."""
        return self.media_type in _IMAGES or (bool(self.url) and self.media_type == "image/*")

    def id_for(self, provider: str) -> str:
        """The id of the upload, if it was uploaded to this provider."""
        found = self.ids.get(provider)
        return found if isinstance(found, str) else ""

    @property
    def words(self) -> str:
        """What a model reads in place of a file that its API does not take."""
        name = f' "{self.name}"' if self.name else ""
        place = f" at {self.url}" if self.url else ""
        return f"[The file{name} ({self.media_type or 'of unknown type'}){place} cannot be shown here.]"


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def blocks(parts: Iterable[Block], show: Callable[[File], Block]) -> list[Block]:
    """The texts of a message that are not blank, and its files as an API has them."""
    return [
        show(read_file(part)) if part["type"] == "file" else text_block(part["text"])
        for part in parts
        if part["type"] == "file" or (part["type"] == "text" and part["text"].strip())
    ]


def read_file(part: Mapping[str, Any]) -> File:
    """The file of a part. Only http(s) URLs stay, since an API cannot follow any other; broken data is none."""
    data = part["data"]
    file = File(part["mediaType"].partition(";")[0].strip().lower(), part.get("filename") or "")
    if data["type"] == "reference":
        file.ids = data["reference"]
    elif (scheme := data["url"].partition(":")[0].lower()) == "data":
        _read_data_url(file, data["url"])
    elif scheme in ("http", "https"):
        file.url = data["url"]
    return file


def _read_data_url(file: File, url: str) -> None:
    head, _, body = url.partition(":")[2].partition(",")
    media_type, *options = head.lower().replace(" ", "").split(";")
    file.media_type = media_type or file.media_type
    file.data = unquote_to_bytes(body)
    if "base64" in options:
        try:
            file.data = base64.b64decode(file.data, validate=True)
        except binascii.Error:
            file.data = b""
