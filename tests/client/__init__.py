"""The parts of a client, each alone or against a server that plays a script."""
