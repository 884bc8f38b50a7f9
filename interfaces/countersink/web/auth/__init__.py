"""Who sends a request and whether it is let in: keys, logins, links, rate limits, origins."""
