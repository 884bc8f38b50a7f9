"""The HTTP interface and the dashboard.

Each endpoint has a :class:`~countersink.web.http.Route`: its path, its handler, the required scope,
and its documentation. Handlers use the same Producer and Store as all other parts.
"""
