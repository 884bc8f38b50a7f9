"""The HTTP interface and the dashboard.

Each endpoint has a :class:`~countersink.web.http.Route`: its path, its handler, the scope that an
API key needs, and its documentation. Handlers use the classes Producer, Store and Reads, as the
other interfaces do.
"""
