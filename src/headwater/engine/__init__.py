"""The engine: groups of streams, each with one writer, one log and one truth.

Never speaks a protocol and never opens a file: doors are above it, logs and stores are handed to it.
"""
