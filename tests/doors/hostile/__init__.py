"""Clients that are slow, stalled, broken or malicious, against a real server process.
They assert status codes, memory bounds and survival, never a duration."""
