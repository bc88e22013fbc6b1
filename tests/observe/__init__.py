"""Log lines and what else the node says of itself."""
