-- The epoch of a stream, which stays the same while entries leave it only by acknowledgement: see stream/progress.py.
-- KEYS[1]  the stream
-- KEYS[2]  the hash of the group's random name and of acknowledge.lua's count
-- ARGV[1]  the consumer group
-- ARGV[2]  '', or a random name: then a missing group is made, at 0, with this name
-- Returns  the server's replication id (changes with each restart and failover); the group's random name, '' if there
--          is no group; entries that left the stream unacknowledged; the first entry's stream id, or false; the last
--          stream id that was ever given
local function field(flat, name)
  for i = 1, #flat, 2 do
    if flat[i] == name then
      return flat[i + 1]
    end
  end
end

local there = false
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if not groups.err then
  for _, group in ipairs(groups) do
    there = there or field(group, 'name') == ARGV[1]
  end
elseif not string.find(groups.err, 'no such key') then
  return groups
end
local life = redis.pcall('HGET', KEYS[2], 'group')
if ARGV[2] ~= '' and not there then
  local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
  if made.err then
    return made
  end
  there, life = true, false
end
if ARGV[2] ~= '' and not life then
  -- A new group, or a group made by an older version, which stored no name.
  redis.pcall('HSET', KEYS[2], 'group', ARGV[2])
  life = ARGV[2]
end
if not there or type(life) ~= 'string' then
  life = ''
end

local stream = redis.pcall('XINFO', 'STREAM', KEYS[1])
local lost, first, last = 0, false, '0-0'
if not stream.err then
  local entry = field(stream, 'first-entry')
  first = entry and entry[1] or false
  last = field(stream, 'last-generated-id')
  local added = field(stream, 'entries-added')
  if added then -- from Redis 7.0 on
    local count = redis.pcall('HGET', KEYS[2], 'count')
    lost = added - field(stream, 'length') - (type(count) == 'string' and tonumber(count) or 0)
  end
end
local server = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
return { server or '', life, lost, first, last }
