"""Authentication of requests: keys, logins, links, rate limits, hosts and origins."""
