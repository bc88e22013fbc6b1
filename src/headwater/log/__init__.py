"""Logs: where accepted events become durable. Frames and entries are pure; `wal` is the local one.

Never decides, and never knows what a client is.
"""
