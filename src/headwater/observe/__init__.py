"""Seeing inside: metrics, health, logging. Reads counters that others keep as plain ints; never changes anything."""
