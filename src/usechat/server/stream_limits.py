"""The bounds of a stream, for whoever sets them without serving one."""

from msgspec import Struct

__all__ = ["StreamLimits"]


class StreamLimits(Struct, frozen=True):
    """When to keep a silent stream alive, and when to give up a reader that does not read.

    A stream gets a comment after `keep_alive` seconds of silence. Readers are told so in the header
    `x-usechat-keep-alive`: `UsechatTransport` takes a connection for dead after twice as long, and a second more.
    A reader that is more than `behind` bytes late and makes no progress for `patience` seconds is cut off; where its
    turn ends by that, it is told so if it reads again within `farewell` seconds.
    """

    keep_alive: float = 2.0
    behind: int = 1024 * 1024
    patience: float = 30.0
    farewell: float = 0.0
