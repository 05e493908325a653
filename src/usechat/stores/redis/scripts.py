"""What Redis does as one: Lua scripts, each of which changes all that belongs together or nothing.

A chat has one hash, `<chat>`: `t` the turn that has it, `h` that turn's head, `e` the highest epoch of its turns. Each
turn has one, `<chat>:<turn>`:

    p phase (claimed, open, sealed, ended)   e epoch   o owner, the worker   d when the lease ends   l how long it is
    n index of the last chunk in the log     x why it was stopped            h head    c the message that it continues
    z the frames that end it, k how many, until they are in the log          y its outcome
    b the bytes of its log, when it has ended

Its log is the stream `<chat>:<turn>:l`, whose entries hold the frames `d` of a batch and have the index of the last
one as id. `<chat>:<turn>:r` counts the readers of each worker, `<chat>:t` lists the turns that have ended, `<chat>:s`
the ids that were used. `<chat>` has the chat's hash as cluster tag, so that all of these are on one node.

Three keys belong to all chats: `running` lists the turns that run and when their leases end, `identity` names this
filling of Redis (a Redis that was emptied gets another one), and `w:` begins the control channels, one of all workers
and one of each.

Time is that of Redis, in microseconds. Epochs are such times, so that a later claim has a higher one even if Redis has
forgotten the earlier ones.

Redis may run a script twice: the second reply is that of the first. tests/stores/scripts_model.py has the same in
Python.
"""

import hashlib
from typing import Final

__all__ = [
    "APPEND",
    "CLAIM",
    "COUNT",
    "EXPIRED",
    "FIND",
    "IDENTIFY",
    "OPEN",
    "PROBE",
    "REGISTER",
    "RELEASE",
    "RENEW",
    "RESTORE",
    "SEAL",
    "STATUS",
    "STOP",
    "TAKE_OVER",
    "Script",
    "milliseconds",
]


_HELPERS: Final = {
    "now": """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
""",
    "integer(": """
local function integer(number) return string.format('%.0f', number) end
""",
    # A turn that has ended or was dropped no longer has its chat.
    "free(": """
local function free(chat, turn)
  if redis.call('HGET', chat, 't') == turn then redis.call('HDEL', chat, 't', 'h') end
end
""",
    # The readers of a turn on all workers but its owner, who counts its own. A worker that counts no more is gone.
    "readers(": """
local function readers(key, owner, now)
  local total, all = 0, redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local count, till = string.match(all[i + 1], '^(%d+) (%d+)$')
    if tonumber(till) <= now then redis.call('HDEL', key, all[i])
    elseif all[i] ~= owner then total = total + tonumber(count) end
  end
  return total
end
""",
    # A lease that lasts for longer than it was given for is of a time before the clock of Redis was set back.
    "expired(": """
local function expired(ends, lease, now)
  ends, lease = tonumber(ends), tonumber(lease)
  return ends <= now or ends > now + lease
end
""",
}


class Script:
    """A body, and the helpers that it names; Redis has it by its digest once it has run it."""

    def __init__(self, body: str, *, flags: str = "") -> None:
        helpers = "".join(source for name, source in _HELPERS.items() if name in body)
        # Redis refuses a script that names its flags before it has done anything, never in the middle.
        self.source = f"#!lua{' flags=' + flags if flags else ''}\n{helpers}{body}".encode()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


def milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


CLAIM: Final = Script("""
-- KEYS chat turn | turn worker lease head ttl
local chat = redis.call('HMGET', KEYS[1], 't', 'h', 'e')
if chat[1] then
  local key = KEYS[1] .. ':' .. chat[1]
  local held = redis.call('HMGET', key, 'p', 'o', 'e')
  if chat[1] == ARGV[1] and held[1] == 'claimed' and held[2] == ARGV[2] then return {'OK', held[3]} end
  -- A turn that Redis has forgotten has nothing.
  if held[1] then return {'RUNNING', chat[2], held[1]} end
end
local epoch = integer(math.max(now, (tonumber(chat[3] or 0)) + 1))
redis.call('HSET', KEYS[1], 't', ARGV[1], 'h', ARGV[4], 'e', epoch)
redis.call('HSET', KEYS[2], 'p', 'claimed', 'e', epoch, 'o', ARGV[2], 'n', 0, 'h', ARGV[4],
  'd', integer(now + ARGV[3]), 'l', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return {'OK', epoch}
""")

OPEN: Final = Script("""
-- KEYS turn used | epoch worker continues used_ttl id...
local turn = redis.call('HMGET', KEYS[1], 'e', 'o', 'p', 'x')
if turn[1] ~= ARGV[1] or turn[2] ~= ARGV[2] or turn[3] == 'ended' then return {'FENCED'} end
if turn[3] ~= 'claimed' then return {'OK', turn[4]} end
for i = 5, #ARGV do
  if redis.call('SISMEMBER', KEYS[2], ARGV[i]) == 1 then return {'USED'} end
end
for i = 5, #ARGV do redis.call('SADD', KEYS[2], ARGV[i]) end
if #ARGV > 4 then redis.call('PEXPIRE', KEYS[2], ARGV[4]) end
redis.call('HSET', KEYS[1], 'p', 'open')
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'c', ARGV[3]) end
redis.call('PUBLISH', KEYS[1], 'open')
return {'OK', turn[4]}
""")

APPEND: Final = Script("""
-- KEYS turn log | epoch worker after last frames
local turn = redis.call('HMGET', KEYS[1], 'e', 'o', 'p', 'n', 'x')
if not turn[1] then return {'GONE'} end
if turn[1] ~= ARGV[1] or turn[2] ~= ARGV[2] then return {'FENCED'} end
if turn[3] ~= 'open' then return {'CLOSED'} end
local top, last = tonumber(turn[4]), tonumber(ARGV[4])
if top > 0 and redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('HSET', KEYS[1], 'n', 0)
  return {'BEHIND', 0}
end
if top >= last then return {'DUPLICATE', top, turn[5]} end
if top ~= tonumber(ARGV[3]) then return {'BEHIND', top} end
-- A user of Redis that may do the one and not the other must not leave an entry that is not counted.
redis.call('HSET', KEYS[1], 'n', ARGV[4])
local added = redis.pcall('XADD', KEYS[2], ARGV[4] .. '-0', 'd', ARGV[5])
if added.err then
  redis.call('HSET', KEYS[1], 'n', turn[4])
  return added
end
redis.call('PUBLISH', KEYS[1], 'more ' .. ARGV[3] .. ' ' .. ARGV[4] .. ' \\n' .. ARGV[5])
return {'OK', last, turn[5]}
""")

SEAL: Final = Script(
    """
-- KEYS turn | epoch worker after frames count outcome
local turn = redis.call('HMGET', KEYS[1], 'e', 'o', 'p', 'n')
if not turn[1] then return {'GONE'} end
if turn[1] ~= ARGV[1] or turn[2] ~= ARGV[2] then return {'FENCED'} end
if turn[3] ~= 'open' then return {'CLOSED'} end
if turn[4] ~= ARGV[3] then return {'BEHIND', tonumber(turn[4])} end
redis.call('HSET', KEYS[1], 'p', 'sealed', 'z', ARGV[4], 'k', ARGV[5], 'y', ARGV[6])
return {'OK'}
""",
    # To end is the way out of a memory that is full.
    flags="allow-oom",
)

RELEASE: Final = Script(
    """
-- KEYS chat turn log ended readers | turn epoch worker keep most bytes phase size
-- Without an epoch it is a claim whose answer was lost.
local turn = redis.call('HMGET', KEYS[2], 'e', 'o', 'p', 'n', 'z', 'k', 'y')
if not turn[1] then return {'GONE'} end
if (ARGV[2] ~= '' and turn[1] ~= ARGV[2]) or turn[2] ~= ARGV[3] then return {'FENCED'} end
if turn[3] == 'ended' then return {'OK'} end
-- One that was sealed, and that Redis got back since, is not dropped.
if ARGV[7] == 'sealed' and turn[3] ~= 'sealed' then return {'GONE'} end
redis.call('DEL', KEYS[5])
free(KEYS[1], ARGV[1])
if turn[3] ~= 'sealed' then
  redis.call('DEL', KEYS[2], KEYS[3])
  redis.call('PUBLISH', KEYS[2], 'gone')
  return {'OK'}
end
local last = integer(turn[4] + turn[6])
redis.call('ZADD', KEYS[4], turn[1], ARGV[1])
redis.call('HSET', KEYS[2], 'p', 'ended', 'n', last, 'b', ARGV[8])
local added = turn[5] == '' and {} or redis.pcall('XADD', KEYS[3], last .. '-0', 'd', turn[5])
if added.err then
  redis.call('HSET', KEYS[2], 'p', 'sealed', 'n', turn[4])
  return added
end
redis.call('HDEL', KEYS[2], 'z', 'k')
for _, key in ipairs({KEYS[2], KEYS[3], KEYS[4]}) do redis.call('PEXPIRE', key, ARGV[4]) end
local size = 0
for place, name in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1, 'REV')) do
  local key = KEYS[1] .. ':' .. name
  size = size + (redis.call('HGET', key, 'b') or 0)
  if place > tonumber(ARGV[5]) or (place > 1 and size > tonumber(ARGV[6])) then
    redis.call('DEL', key, key .. ':l')
    redis.call('ZREM', KEYS[4], name)
  end
end
redis.call('PUBLISH', KEYS[2], 'end ' .. turn[4] .. ' ' .. last .. ' ' .. turn[7] .. '\\n' .. turn[5])
return {'OK'}
""",
    flags="allow-oom",
)

STOP: Final = Script(
    """
-- KEYS turn | turn why workers
local turn = redis.call('HMGET', KEYS[1], 'e', 'o', 'p', 'x')
if not turn[1] or turn[3] == 'ended' then return {'GONE'} end
if not turn[4] then redis.call('HSET', KEYS[1], 'x', ARGV[2]) end
redis.call('PUBLISH', ARGV[3] .. turn[2], 'stop ' .. ARGV[1] .. ' ' .. turn[1] .. ' ' .. ARGV[2])
return {'OK', turn[1]}
""",
    flags="allow-oom",
)

TAKE_OVER: Final = Script(
    """
-- KEYS chat turn log readers | turn epoch worker lease workers earliest latest
-- Without an epoch it is taken only from an owner whose lease has ended, unless it is earlier or later than it can be
-- by the clock of the worker that takes it: then somebody set that of Redis, which ended the lease.
local turn = redis.call('HMGET', KEYS[2], 'e', 'o', 'p', 'd', 'x', 'n', 'z', 'k', 'y', 'h', 'c', 'l')
if not turn[1] or turn[3] == 'ended' then
  free(KEYS[1], ARGV[1])
  return {'GONE'}
end
if ARGV[2] == '' and not expired(turn[4], turn[12], now) then return {'ALIVE'} end
if ARGV[2] == '' and (now < tonumber(ARGV[6]) or now > tonumber(ARGV[7])) then return {'JUMPED', integer(now)} end
if ARGV[2] ~= '' and ARGV[2] ~= turn[1] then return {'CHANGED', turn[1]} end
local epoch = integer(math.max(now, turn[1] + 1))
redis.call('PUBLISH', ARGV[5] .. turn[2], 'fenced ' .. ARGV[1] .. ' ' .. turn[1])
if turn[3] == 'claimed' then
  free(KEYS[1], ARGV[1])
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
  redis.call('PUBLISH', KEYS[2], 'gone')
  return {'DROPPED'}
end
if turn[6] ~= '0' and redis.call('EXISTS', KEYS[3]) == 0 then
  -- Redis has lost what it wrote, which its owner cannot give back any more; an end alone is none.
  turn[3], turn[6], turn[7], turn[8], turn[9] = 'open', 0, false, false, false
  redis.call('HSET', KEYS[2], 'p', 'open', 'n', 0)
  redis.call('HDEL', KEYS[2], 'z', 'k', 'y')
end
redis.call('HSET', KEYS[2], 'e', epoch, 'o', ARGV[3], 'd', integer(now + ARGV[4]), 'l', ARGV[4])
redis.call('HSET', KEYS[1], 'e', epoch)
redis.call('PUBLISH', KEYS[2], 'taken ' .. epoch)
return {'OK', epoch, turn[3], turn[5], tonumber(turn[6]), turn[7], turn[8], turn[9], turn[10], turn[11]}
""",
    flags="allow-oom",
)

RENEW: Final = Script(
    """
-- KEYS chat turn log readers | epoch worker lease ttl
local turn = redis.call('HMGET', KEYS[2], 'e', 'o', 'p', 'x')
if not turn[1] then return {'GONE'} end
if turn[1] ~= ARGV[1] or turn[2] ~= ARGV[2] then return {'FENCED'} end
if turn[3] == 'ended' then return {'CLOSED'} end
redis.call('HSET', KEYS[2], 'd', integer(now + ARGV[3]), 'l', ARGV[3])
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ARGV[4]) end
return {'OK', turn[4], readers(KEYS[4], ARGV[2], now)}
""",
    flags="allow-oom",
)

STATUS: Final = Script(
    """
-- KEYS turn
local turn = redis.call('HMGET', KEYS[1], 'p', 'e', 'n', 'd', 'y', 'c', 'l')
if not turn[1] then return {'GONE'} end
return {turn[1], turn[2], tonumber(turn[3]), expired(turn[4], turn[7], now) and 1 or 0, turn[5], turn[6]}
""",
    flags="no-writes,allow-stale",
)

FIND: Final = Script(
    """
-- KEYS chat ended | mark
local chat = redis.call('HMGET', KEYS[1], 't', 'h')
local function has_mark(turn) return turn == ARGV[1] or string.sub(turn, 1, 8) == ARGV[1] end
if chat[1] and has_mark(chat[1]) then return {chat[2], chat[2]} end
for _, turn in ipairs(ARGV[1] ~= '' and redis.call('ZRANGE', KEYS[2], 0, -1, 'REV') or {}) do
  local head = has_mark(turn) and redis.call('HGET', KEYS[1] .. ':' .. turn, 'h')
  if head then return {head, chat[2]} end
end
return {false, chat[2]}
""",
    flags="no-writes,allow-stale",
)

COUNT: Final = Script("""
-- KEYS turn readers | turn worker count life workers
local turn = redis.call('HMGET', KEYS[1], 'p', 'o')
if not turn[1] or turn[1] == 'ended' then return {'GONE'} end
if tonumber(ARGV[3]) > 0 then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3] .. ' ' .. integer(now + ARGV[4]))
  redis.call('PEXPIRE', KEYS[2], math.ceil(ARGV[4] / 1000))
else
  redis.call('HDEL', KEYS[2], ARGV[2])
end
redis.call('PUBLISH', ARGV[5] .. turn[2], 'readers ' .. ARGV[1] .. ' ' .. readers(KEYS[2], turn[2], now))
return {'OK'}
""")

RESTORE: Final = Script("""
-- KEYS chat turn used | turn epoch worker lease head continues ttl used_ttl id...
local turn = redis.call('HMGET', KEYS[2], 'e', 'o', 'n')
if turn[1] then
  if turn[1] ~= ARGV[2] or turn[2] ~= ARGV[3] then return {'FENCED'} end
  return {'OK', tonumber(turn[3])}
end
local chat = redis.call('HMGET', KEYS[1], 't', 'e')
if tonumber(chat[2] or 0) > tonumber(ARGV[2]) then return {'FENCED'} end
if chat[1] and chat[1] ~= ARGV[1] then redis.call('DEL', KEYS[1] .. ':' .. chat[1]) end
redis.call('HSET', KEYS[1], 't', ARGV[1], 'h', ARGV[5], 'e', ARGV[2])
redis.call('HSET', KEYS[2], 'p', 'open', 'e', ARGV[2], 'o', ARGV[3], 'n', 0, 'h', ARGV[5],
  'd', integer(now + ARGV[4]), 'l', ARGV[4])
if ARGV[6] ~= '' then redis.call('HSET', KEYS[2], 'c', ARGV[6]) end
redis.call('DEL', KEYS[2] .. ':l')
for i = 1, 2 do redis.call('PEXPIRE', KEYS[i], ARGV[7]) end
for i = 9, #ARGV do redis.call('SADD', KEYS[3], ARGV[i]) end
if #ARGV > 8 then redis.call('PEXPIRE', KEYS[3], ARGV[8]) end
redis.call('PUBLISH', KEYS[2], 'open')
return {'OK', 0}
""")

REGISTER: Final = Script(
    """
-- KEYS running | lease member...
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], integer(now + ARGV[1]), ARGV[i]) end
return {'OK'}
""",
    flags="allow-oom",
)

PROBE: Final = Script("""
-- Redis refuses it as it would refuse a script that writes.
return {'OK'}
""")

IDENTIFY: Final = Script(
    """
-- KEYS identity | identity workers
local identity = redis.call('HGET', KEYS[1], 'm')
if identity then return identity end
redis.call('HSET', KEYS[1], 'm', ARGV[1])
redis.call('PUBLISH', ARGV[2], 'emptied')
return ARGV[1]
""",
    flags="allow-oom",
)

EXPIRED: Final = Script(
    """
-- KEYS running | lease most
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', integer(now), 'LIMIT', 0, ARGV[2])
-- Nobody registers a turn for ten leases: it was before the clock of Redis was set back.
local never = redis.call('ZRANGEBYSCORE', KEYS[1], integer(now + 10 * ARGV[1]), '+inf', 'LIMIT', 0, ARGV[2])
for _, member in ipairs(never) do table.insert(due, member) end
-- So that not all workers look at the same ones at the same time.
for _, member in ipairs(due) do redis.call('ZADD', KEYS[1], integer(now + ARGV[1] / 4), member) end
return {integer(now), due}
""",
    flags="allow-oom",
)
