-- Which of the entries that a sample had seen are gone, and the sample of now. The entries' fields stay in Redis.
-- KEYS[1]  the stream
-- ARGV[1]  how many of the newest entries belong to the sample, beside the oldest
-- ARGV[2…] pairs: stream id, entry id (32 hex digits), of the sample before
-- Returns  entries in the stream; entries ever added (0 before Redis 7.0); the sample as pairs like those of ARGV, in
--          the stream's order; the entry ids that are gone.
local function entry_id(entry)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'id' then
      local own = string.lower(fields[i + 1])
      if #own == 32 and string.match(own, '^%x+$') then
        return own
      end
      break
    end
  end
  return derived(KEYS[1], entry[1], fields)
end

local gone = {}
for i = 2, #ARGV, 2 do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  if not entry or entry_id(entry) ~= ARGV[i + 1] then
    gone[#gone + 1] = ARGV[i + 1]
  end
end

local length, added, pairs_found = redis.call('XLEN', KEYS[1]), 0, {}
local stream = redis.pcall('XINFO', 'STREAM', KEYS[1])
for i = 1, #stream, 2 do
  if stream[i] == 'entries-added' then
    added = stream[i + 1]
  end
end
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[1])
local found = {}
if length > #newest then
  found = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
end
for i = #newest, 1, -1 do
  found[#found + 1] = newest[i]
end
for _, entry in ipairs(found) do
  pairs_found[#pairs_found + 1] = entry[1]
  pairs_found[#pairs_found + 1] = entry_id(entry)
end
return { length, added, pairs_found, gone }
