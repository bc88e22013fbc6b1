"""A cluster on this machine, for development, tests and benchmarks: nodes, NATS servers and an S3 as child processes.

Owns those processes, their files and their ports. Nothing that serves imports it: a node needs none of it.
"""
