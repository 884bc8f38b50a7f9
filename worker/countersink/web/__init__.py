"""The HTTP interface: increments in, totals out, and a page to look at.

One table of :class:`~countersink.web.door.Door` says which paths there are, who may use them and
how they are documented; everything goes through the same Producer and Store as everything else.
"""
