"""The HTTP interface and the dashboard.

A table of :class:`~countersink.web.http.Route` says which paths there are, who may use them
and how they are documented; everything goes through the same Producer and Store as everything else.
"""
