"""What every part may import: rules that hold in queue, tables and programs alike.

Needs the standard library alone.
"""
