-- The entries of a range of a stream, up to a number of entries and of bytes.
-- KEYS[1]  the stream
-- ARGV[1]  begin of the range: a stream id, '(' and a stream id for the entry behind it, '-' for the first entry
-- ARGV[2]  end of the range: a stream id, '+' for the last entry
-- ARGV[3]  most entries
-- ARGV[4]  bytes after which no more entries are returned
-- Returns  entries as fit() returns them; 1 if the range has no more entries, else 0
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
