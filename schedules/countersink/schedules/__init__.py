"""Scheduled jobs: the scheduler that plans runs, the process that executes them, and the jobs."""
