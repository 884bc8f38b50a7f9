"""`make demo`: two applications count events, a worker is killed, and no count is lost or
doubled."""
