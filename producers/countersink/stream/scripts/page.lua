-- The entries of a stretch of a stream, as many as fit.
-- KEYS[1]  the stream
-- ARGV[1]  where it begins: a stream id, '(' in front of it for the next one after it, '-' for the first
-- ARGV[2]  where it ends
-- ARGV[3]  entries at most
-- ARGV[4]  bytes after which there are no more
-- Returns  entries as fit() makes them; 1 if there are no more behind them.
local found, size, start = {}, 0, ARGV[1]
while #found < tonumber(ARGV[3]) and size < tonumber(ARGV[4]) do
  local entry = redis.call('XRANGE', KEYS[1], start, ARGV[2], 'COUNT', 1)[1]
  if not entry then
    return { found, 1 }
  end
  local bytes
  start = '(' .. entry[1]
  found[#found + 1], bytes = fit(KEYS[1], entry)
  size = size + bytes
end
return { found, 0 }
