"""The server process: uvicorn, with bounds on each connection."""
