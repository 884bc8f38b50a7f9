"""Counting in the application's own transactions, on its own connections."""
