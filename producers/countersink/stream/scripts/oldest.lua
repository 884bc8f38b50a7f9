-- The smallest time at which any entry on a page of a stream was first sent. The fields, up to 300 KB of each entry,
-- stay in Redis; the work is bounded by the page.
-- KEYS[1]  the stream
-- ARGV[1]  where the page begins: a stream id, '(' in front of it for the next one after it, '-' for the first
-- ARGV[2]  entries on a page
-- Returns  entries found, Unix ms, the last one's stream id; the last two only where an entry was found.
--          The time is the field 'at' or the stream id's time, whichever is earlier: a reader who can make nothing of
--          the entry goes by the latter.
local oldest, last
local found, start = 0, ARGV[1]
while found < tonumber(ARGV[2]) do
  -- One by one: what a script has in hand comes on top of Redis's memory.
  local entry = redis.call('XRANGE', KEYS[1], start, '+', 'COUNT', 1)[1]
  if not entry then
    break
  end
  found, last, start = found + 1, entry[1], '(' .. entry[1]
  local fields = entry[2]
  local time = tonumber(string.match(entry[1], '^%d+'))
  for i = 1, #fields, 2 do
    if fields[i] == 'at' then
      local at = fields[i + 1]
      if #at <= 15 and string.match(at, '^%d+$') then
        time = math.min(time, tonumber(at))
      end
      break
    end
  end
  if oldest == nil or time < oldest then
    oldest = time
  end
end
if found == 0 then
  return { 0 }
end
return { found, oldest, last }
