"""Totals: what was counted, added up; and the questions about it on an open session."""
