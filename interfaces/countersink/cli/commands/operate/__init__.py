"""The commands under "Check and repair" and "Look after" in ``countersink --help``."""
