-- The earliest time at which an entry on a page of a stream was first sent. The fields, up to 300 KB per entry, stay in
-- Redis; the page bounds the work.
-- KEYS[1]  the stream
-- ARGV[1]  begin of the page: a stream id, '(' and a stream id for the entry behind it, '-' for the first entry
-- ARGV[2]  entries on a page
-- Returns  the number of entries found, Unix ms, the last entry's stream id; only 0 if no entry was found.
--          The time is the field 'at' or the stream id's time, whichever is earlier: workers use the latter for an
--          entry that they cannot decode.
local oldest, last
local found, start = 0, ARGV[1]
while found < tonumber(ARGV[2]) do
  -- One by one: entries in the script need memory in addition to Redis's own.
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
