"""`make demo`: events in, totals out, a worker killed on the way, and nothing lost or doubled."""
