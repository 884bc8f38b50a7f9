"""Endpoints, a module for each group: handlers, parameters, answers and OpenAPI texts."""
