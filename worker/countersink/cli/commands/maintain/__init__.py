"""The commands that look after an installation."""
