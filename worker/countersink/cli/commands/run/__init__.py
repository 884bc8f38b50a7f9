"""``countersink up``, ``migrate``, and the processes that run until stopped."""
