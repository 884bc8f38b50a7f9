"""The scheduler: one process is in charge, and plans the runs that are due."""
