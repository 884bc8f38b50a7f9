-- The stream ids of a stream's first and last entry. The entries' fields stay in Redis.
-- KEYS[1]  the stream
-- Returns  the two stream ids; nothing for an empty stream
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return first and { first[1], last[1] } or {}
