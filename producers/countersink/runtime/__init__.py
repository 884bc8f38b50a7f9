"""Modules that every package may import and that need the standard library alone: limits,
dimensions, members, the reasons of dead letters, the log, retries, stops by signals, texts.
"""
