"""The commands that start processes, count and read. See ``cli/app.py`` for the list of all
commands."""
