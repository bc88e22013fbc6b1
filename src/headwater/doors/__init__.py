"""Doors: bytes to commands and outcomes to bytes, one folder per protocol.

Never decides what happens to a stream, and never touches a log or a store: the engine does.
"""
