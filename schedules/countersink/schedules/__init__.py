"""Scheduled jobs: the scheduler that plans runs, the process that runs them, and the jobs."""
