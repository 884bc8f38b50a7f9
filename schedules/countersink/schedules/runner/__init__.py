"""The job process: RQ's worker, and a run from its start to its end."""
