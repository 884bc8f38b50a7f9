"""Modules that every package may import and that need the standard library alone: limits, the log,
retries, signals, the reasons of dead letters.
"""
