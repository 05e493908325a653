"""Scripts that Redis runs, and what several of them begin with."""

import hashlib
from typing import Final

__all__ = ["FREE", "INTEGER", "LATE", "NOW", "READERS", "Step"]

NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
"""

# A turn that has ended or was dropped no longer has its chat.
FREE: Final = """
local function free(chat, turn)
  if redis.call('HGET', chat, 't') == turn then redis.call('HDEL', chat, 't', 'h') end
end
"""

# The readers of a turn on all workers but its owner, who counts its own. A worker that counts no more is gone.
READERS: Final = """
local function readers(key, owner, now)
  local total, all = 0, redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local count, till = string.match(all[i + 1], '^(%d+) (%d+)$')
    if tonumber(till) <= now then redis.call('HDEL', key, all[i])
    elseif all[i] ~= owner then total = total + tonumber(count) end
  end
  return total
end
"""

# A lease that lasts for longer than it was given for is of a time before the clock of Redis was set back.
LATE: Final = """
local function late(ends, lease, now)
  ends, lease = tonumber(ends), tonumber(lease)
  return ends <= now or ends > now + lease
end
"""

INTEGER: Final = """
local function integer(number) return string.format('%.0f', number) end
"""


class Step:
    """A script; Redis knows it by its digest once it has run it."""

    def __init__(self, body: str, *, flags: str = "") -> None:
        # A script that says its flags is refused before it has done anything, never in the middle.
        self.source = f"#!lua{' flags=' + flags if flags else ''}\n{body}".encode()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()
