"""Headwater: a self-hosted server for durable streams.

Owns the package's version and nothing else; importing it starts nothing and reads nothing.
"""

__version__ = "0.1.0"
