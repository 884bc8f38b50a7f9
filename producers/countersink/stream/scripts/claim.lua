-- Take over pending entries of one stream from other consumers, up to a number of bytes.
-- KEYS[1]  the stream
-- ARGV[1]  the consumer group
-- ARGV[2]  the consumer that takes over
-- ARGV[3]  bytes after which no more entries are taken over
-- ARGV[4…] pairs: stream id, the consumer it was pending with; skipped if it is now pending with another one
-- Returns  entries as fit() returns them; stream ids that were pending and are no longer in the stream
local found, lost, size = {}, {}, 0
for i = 4, #ARGV, 2 do
  if size >= tonumber(ARGV[3]) then
    break
  end
  local id = ARGV[i]
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  if pending[1] and pending[1][2] == ARGV[i + 1] then
    if #redis.call('XRANGE', KEYS[1], id, id) == 0 then
      redis.call('XACK', KEYS[1], ARGV[1], id)
      lost[#lost + 1] = id
    else
      local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id)
      local entry, bytes = fit(KEYS[1], claimed[1])
      found[#found + 1] = entry
      size = size + bytes
    end
  end
end
return { found, lost }
