"""The HTTP interface and the dashboard.

A table of :class:`~countersink.web.http.Route` has each path with its handler, the required scope
and its documentation; handlers use the same Producer and Store as all other parts.
"""
