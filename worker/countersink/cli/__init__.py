"""The ``countersink`` command: thin commands over ``stream``, ``store``, ``worker`` and ``reads``.

Nothing is imported here, and every command's module only when that command runs, so that the
command starts quickly.
"""
