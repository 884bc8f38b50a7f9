"""What people build by hand, in the strongest form that we know of: all count the same events."""
