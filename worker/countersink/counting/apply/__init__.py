"""Applying each entry to the counters exactly once; dead letters."""
