"""A cluster on one machine: its processes by themselves, and whole ones with real nodes, NATS servers and S3.
Nothing here judges what a node answers beyond that it serves."""
