"""The ``countersink`` command: settings, commands, output and errors.

This module imports nothing, and a command's module is imported only when that command runs, so that
the command starts quickly.
"""
