"""Topics over HTTP: everything below /v0/. One module for each family of routes.

Never decides a command: the engine does.
"""
