"""HTTP: routes, headers, bodies, parameters, answers, the OpenAPI document."""
