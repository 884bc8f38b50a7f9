"""The scheduler process: plans the runs that are due; any number of them are equal."""
