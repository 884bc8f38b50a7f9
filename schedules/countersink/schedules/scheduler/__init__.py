"""The scheduler: one process has the lease and plans the runs that are due."""
