-- Acknowledge entries of one stream and remove them, if their stream ids still hold the applied entries: after a
-- failover a stream id may belong to another entry.
-- KEYS[1]   the stream
-- KEYS[2]   the hash that counts acknowledged entries: by it producers distinguish applied entries from lost ones
-- ARGV[1]   the consumer group
-- ARGV[2…]  pairs: stream id, entry id (32 hex digits; see entry.py, derived_id, for entries without an id)
-- Returns   the number of removed entries
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
    -- Trimmed or deleted after we read it: no entry can be lost by this.
    redis.pcall('XACK', KEYS[1], ARGV[1], stream_id)
  elseif is_ours(stream_id, found[1][2], ours) then
    redis.pcall('XACK', KEYS[1], ARGV[1], stream_id)
    removed = removed + redis.call('XDEL', KEYS[1], stream_id)
  end
end
if removed > 0 then
  -- After a removal, so that a full Redis allows the write; pcall, as the key may be of another type.
  redis.pcall('HINCRBY', KEYS[2], 'count', removed)
end
return removed
