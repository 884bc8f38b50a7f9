"""The ``countersink`` command: settings, commands, output and errors.

This module imports nothing, and a command's module is imported only when that command runs. So the
command starts quickly.
"""
