"""What all packages may import, with the standard library alone: limits, log, retries, signals,
dead-letter reasons.

Needs the standard library alone.
"""
