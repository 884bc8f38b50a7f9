-- Delete a consumer only while it has nothing pending: deleting it with pending entries would leave entries that
-- nobody redelivers.
-- KEYS[1]  the stream
-- ARGV[1]  the consumer group
-- ARGV[2]  the consumer
-- Returns  1 if it is gone, 0 if it still has pending entries.
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if pending.err then
  return 1
end
if #pending > 0 then
  return 0
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
