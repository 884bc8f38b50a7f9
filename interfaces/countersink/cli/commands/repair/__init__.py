"""The commands that check and mend: ``verify``, ``dead``, ``spool``, ``doctor``."""
