-- The clock of the server that has a stream: on a cluster TIME alone would ask any node, also one that does not answer.
-- KEYS[1]  the stream
-- Returns  seconds, microseconds
return redis.call('TIME')
