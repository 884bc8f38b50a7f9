"""`countersink up`: private servers, the tables and a worker, kept running until it is stopped."""
