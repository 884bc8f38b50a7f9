"""One module for each group of endpoints: handlers, parameters, answers, OpenAPI texts."""
