"""Counting: which source a content is, its chunks, and the transaction that counts one."""
