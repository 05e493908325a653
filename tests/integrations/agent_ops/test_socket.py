"""A session's WebSocket by itself; what it does for a gateway is in `tests/gateway/`."""

import asyncio

import pytest

from support.hang import HANG_SECONDS
from support.upstreams import init, speaking
from usechat.integrations.agent_ops import socket as sockets
from usechat.integrations.agent_ops.options import SocketLimits
from usechat.integrations.agent_ops.socket import AbortedBy, SessionAddress, SessionSockets

pytestmark = pytest.mark.anyio

ADDRESS = SessionAddress("s1", "ana", "token")


class Uncounted:
    def sockets_changed(self, count: int, most_of_a_session: int) -> None: ...

    def open_failed(self) -> None:
        raise AssertionError

    def aborted(self, by: AbortedBy) -> None:
        raise AssertionError(by)


async def test_to_close_does_not_wait_for_frames_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    # The upstream may take for ever to close: only its own close ends the wait.
    monkeypatch.setattr(sockets, "_CLOSES", None)
    unread = [init(), *({"type": "toast", "title": str(number)} for number in range(20))]
    async with asyncio.timeout(HANG_SECONDS), speaking([], greeting=unread) as (url, _):
        opened = SessionSockets(url, None, SocketLimits(), Uncounted())
        socket = await opened.open(ADDRESS)
        assert (await socket.next())["type"] == "init"
        await socket.close()
        assert opened.count == 0
