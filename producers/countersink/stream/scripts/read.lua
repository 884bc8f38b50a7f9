-- New entries of one stream for a consumer, as many as fit: XREADGROUP alone knows no bound in bytes.
-- KEYS[1]  the stream
-- ARGV[1]  the consumer group
-- ARGV[2]  the consumer
-- ARGV[3]  entries at most
-- ARGV[4]  bytes after which there are no more
-- Returns  entries as fit() makes them
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
