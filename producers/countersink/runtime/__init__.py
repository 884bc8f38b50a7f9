"""Modules that every package may import, written with the standard library alone: limits, log,
retries, signals, dead-letter reasons.
"""
