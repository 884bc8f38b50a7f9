-- Add a batch of a log's entries to the stream and set the log's mark, both or neither, and only where the mark is
-- the one that the caller knows: two readers of one log can never both count a line.
-- KEYS[1]  the mark (string)            KEYS[2]  the stream of the same partition
-- ARGV[1]  the mark that is known; empty: none
-- ARGV[2]  the mark behind the batch    ARGV[3]  from how many entries on the stream is full
-- ARGV[4]… for each entry how many arguments its fields take, then those
-- Returns  {outcome, mark}: stored (also by an earlier call), full, or other (the mark is not ARGV[1])
local mark = redis.call('GET', KEYS[1]) or ''
if mark == ARGV[2] then
  return {'stored', mark}
end
if mark ~= ARGV[1] then
  return {'other', mark}
end
-- Everything that can fail is read before the first write: a script is not rolled back.
local length = redis.call('XLEN', KEYS[2])
if #ARGV > 3 and length >= tonumber(ARGV[3]) then
  return {'full', mark}
end
local i = 4
while i <= #ARGV do
  local last = i + tonumber(ARGV[i])
  redis.call('XADD', KEYS[2], '*', unpack(ARGV, i + 1, last))
  i = last + 1
end
redis.call('SET', KEYS[1], ARGV[2])
return {'stored', ARGV[2]}
