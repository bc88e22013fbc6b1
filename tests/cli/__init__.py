"""The command line, tried as a person would: the client alone, and every command against a real node.
Nothing here reaches into the server."""
