"""Who sends a request, and whether it is let in."""
