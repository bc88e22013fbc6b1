"""A node behind real proxies, set up as the guide says."""
