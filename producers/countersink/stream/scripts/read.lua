-- New entries of one stream for a consumer, up to a number of bytes, which XREADGROUP alone cannot bound.
-- KEYS[1]  the stream
-- ARGV[1]  the consumer group
-- ARGV[2]  the consumer
-- ARGV[3]  most entries
-- ARGV[4]  bytes after which no more entries are read
-- Returns  entries as fit() returns them
local found, size = {}, 0
while #found < tonumber(ARGV[3]) and size < tonumber(ARGV[4]) do
  local reply = redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[1], '>')
  if reply and reply.err then
    if #found == 0 then
      return reply
    end
    break
  end
  if not reply or not reply[1] then
    break
  end
  local entry, bytes = fit(KEYS[1], reply[1][2][1])
  found[#found + 1] = entry
  size = size + bytes
end
return found
