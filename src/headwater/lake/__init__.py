"""The lake: what is settled, in an object store. Never knows about requests or the log."""
