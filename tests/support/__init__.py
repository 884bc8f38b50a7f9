"""Helpers for tests: waiting, servers, processes, proxies."""
