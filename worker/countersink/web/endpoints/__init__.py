"""Endpoints: what requests to each part of the HTTP interface are answered by."""
