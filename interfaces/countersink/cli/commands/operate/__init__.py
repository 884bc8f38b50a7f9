"""The commands that check, repair and operate an installation, from ``doctor`` to ``link``."""
