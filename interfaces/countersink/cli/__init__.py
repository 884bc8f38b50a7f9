"""The ``countersink`` command: settings, commands, output and errors.

Nothing is imported here, and every command's module only when that command runs, so that the
command starts quickly.
"""
