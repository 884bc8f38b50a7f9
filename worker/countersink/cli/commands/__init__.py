"""One module per command, each with its click command as ``command``; listed in ``cli/app.py``."""
