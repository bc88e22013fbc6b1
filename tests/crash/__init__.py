"""Proofs that an acknowledged byte survives: kills at random moments, and disks that fail.
They speak to real processes only and never reach inside one."""
