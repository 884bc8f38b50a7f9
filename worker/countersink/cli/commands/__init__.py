"""The modules of the commands, by the headings of ``countersink --help`` (see ``cli/app.py``)."""
