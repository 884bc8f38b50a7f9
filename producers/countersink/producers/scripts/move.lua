-- Add a log's entries to the stream and move its position, both or neither, and only from the position that the
-- caller has read: two readers of one log can never both count a line.
-- KEYS[1]  the position (hash)          KEYS[2]  the stream of the same partition
-- ARGV[1]  the token the position must have; empty where there is none yet
-- ARGV[2]  the token it gets            ARGV[3]  from how many entries on the stream is full
-- ARGV[4]  how many arguments the position's fields take, then those; then for each entry the same
-- Returns  stored (also when an earlier call did it), full, or moved (somebody else moved the position)
local token = redis.call('HGET', KEYS[1], 'token') or ''
if token == ARGV[2] then
  return 'stored'
end
if token ~= ARGV[1] then
  return 'moved'
end
local first = 5 + tonumber(ARGV[4])
-- Everything that can fail is read before the first write: a script is not rolled back.
local length = redis.call('XLEN', KEYS[2])
if first <= #ARGV and length >= tonumber(ARGV[3]) then
  return 'full'
end
local i = first
while i <= #ARGV do
  local last = i + tonumber(ARGV[i])
  redis.call('XADD', KEYS[2], '*', unpack(ARGV, i + 1, last))
  i = last + 1
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 5, first - 1))
return 'stored'
