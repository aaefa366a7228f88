"""The Lua scripts of the sink. Redis runs each wholly before anything else.

Keys: the index is a hash, list of rows -> its snapshot, "" until it is pre-committed; and ``moved:<snapshot>`` -> the
rows of a commit that is half done. The log is a sorted set of the last snapshots that were committed, by number.

Rules:
- Each script may be run twice with the same arguments: the client repeats a call whose answer was lost.
- Rows are appended to the stream and removed from their list in one script. So what is left in the lists is what is
  left to be committed, wherever a commit was interrupted.
- A write that Redis refuses (no memory, no permission) is refused before a row has moved.
"""

from __future__ import annotations

from typing import Final

COMMITS_MAX: Final = 1000
"""The log keeps so many snapshots."""

STAGE: Final = """
local there, before, rows = redis.call('LLEN', KEYS[2]), tonumber(ARGV[1]), #ARGV - 1
if before > 0 and redis.call('HEXISTS', KEYS[1], KEYS[2]) == 0 then return 0 end
if there == before + rows then return 1 end
if there ~= before then return 0 end
redis.call('HSET', KEYS[1], KEYS[2], '')
redis.call('RPUSH', KEYS[2], unpack(ARGV, 2))
return 1
"""
"""Append rows to a list. KEYS: index, list. ARGV: the rows before, the rows. 0: another start has discarded the list.
"""

SEAL: Final = """
for i = 2, #KEYS do
  if redis.call('HEXISTS', KEYS[1], KEYS[i]) == 0 or redis.call('LLEN', KEYS[i]) ~= tonumber(ARGV[i]) then return 0 end
end
for i = 2, #KEYS do redis.call('HSET', KEYS[1], KEYS[i], ARGV[1]) end
return 1
"""
"""Pre-commit lists. KEYS: index, lists. ARGV: snapshot, the rows of each list. 0: rows are missing."""

COMMIT: Final = (
    """
local snapshot, number, expected, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('ZSCORE', KEYS[3], snapshot) then return 0 end
local left = 0
for i = 4, #KEYS do left = left + redis.call('LLEN', KEYS[i]) end
local moved = tonumber(redis.call('HGET', KEYS[2], 'moved:' .. snapshot) or '0')
if moved + left ~= expected then
  local oldest = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  if redis.call('ZCARD', KEYS[3]) >= @MAX@ and number < tonumber(oldest[2]) then return 0 end
  return -1
end
for i = 4, #KEYS do redis.call('LTRIM', KEYS[i], 0, -1) end
for i = 4, #KEYS do
  if room > 0 then
    local rows = redis.call('LRANGE', KEYS[i], 0, room - 1)
    for _, row in ipairs(rows) do
      if ARGV[5] == '' then
        redis.call('XADD', KEYS[1], '*', unpack(cmsgpack.unpack(row)))
      else
        redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[5], '*', unpack(cmsgpack.unpack(row)))
      end
    end
    redis.call('LTRIM', KEYS[i], #rows, -1)
    room, left, moved = room - #rows, left - #rows, moved + #rows
  end
end
if left > 0 then
  redis.call('HSET', KEYS[2], 'moved:' .. snapshot, moved)
  return left
end
redis.call('ZADD', KEYS[3], ARGV[2], snapshot)
redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -@MAX@ - 1)
redis.call('HDEL', KEYS[2], 'moved:' .. snapshot, unpack(KEYS, 4))
return 0
"""
).replace("@MAX@", str(COMMITS_MAX))
"""Move rows to the stream. KEYS: stream, index, log, lists. ARGV: snapshot, its number, rows of the commit, rows to
move now, length of the stream or "". Returns the rows that are left; -1: rows are missing.
"""

DISCARD: Final = """
redis.call('HDEL', KEYS[1], ARGV[1], unpack(KEYS, 2))
for i = 2, #KEYS do redis.call('UNLINK', KEYS[i]) end
return 1
"""
"""Remove lists. KEYS: index, lists. ARGV: another field of the index."""
