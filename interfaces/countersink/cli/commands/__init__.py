"""The modules of the commands, by the groups of ``countersink --help`` (see ``cli/app.py``)."""
