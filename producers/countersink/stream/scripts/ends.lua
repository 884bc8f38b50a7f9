-- The stream ids of a stream's first and last entry; nothing for an empty one. The entries stay in Redis.
-- KEYS[1]  the stream
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return first and { first[1], last[1] } or {}
