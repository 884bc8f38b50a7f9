"""HTTP: routes, dispatcher, headers, bodies, parameters, answers, the OpenAPI document."""
