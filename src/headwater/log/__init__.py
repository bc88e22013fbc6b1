"""Logs: where accepted events become durable. Frames and entries are pure; `wal` is the local one, `quorum` is the one
of a cluster, over a medium of numbered entries (`medium`).

Never decides, and never knows what a client is.
"""
