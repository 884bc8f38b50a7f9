"""HTTP: routes, what requests hold, what answers are made of, and their documentation."""
