-- Acknowledge entries of one stream and remove them, but only where the stream id still holds the entry we applied:
-- after a failover the same stream id may have been given to another event.
-- KEYS[1]   the stream
-- KEYS[2]   the hash that counts what was acknowledged: producers tell by it what was applied from what was lost
-- ARGV[1]   the consumer group
-- ARGV[2…]  pairs: stream id, our entry id (32 hex digits; see entry.py, derived_id, for entries that came without)
-- Returns   how many entries were removed.
local function is_ours(stream_id, fields, ours)
  for i = 1, #fields, 2 do
    if fields[i] == 'id' and string.lower(fields[i + 1]) == ours then
      return true
    end
  end
  return derived(KEYS[1], stream_id, fields) == ours
end

local removed = 0
for i = 2, #ARGV, 2 do
  local stream_id, ours = ARGV[i], ARGV[i + 1]
  local found = redis.call('XRANGE', KEYS[1], stream_id, stream_id)
  if #found == 0 then
    -- Trimmed or deleted by somebody else after we read it: nothing to lose, and nobody else's.
    redis.pcall('XACK', KEYS[1], ARGV[1], stream_id)
  elseif is_ours(stream_id, found[1][2], ours) then
    redis.pcall('XACK', KEYS[1], ARGV[1], stream_id)
    removed = removed + redis.call('XDEL', KEYS[1], stream_id)
  end
end
if removed > 0 then
  -- After the first removal, so that a full Redis takes it; and whatever lies at that key, the entries are gone.
  redis.pcall('HINCRBY', KEYS[2], 'count', removed)
end
return removed
