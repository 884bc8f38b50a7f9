-- The clock of the server that has a stream; on a cluster TIME without a key could go to a node that does not answer.
-- KEYS[1]  the stream
-- Returns  seconds, microseconds
return redis.call('TIME')
