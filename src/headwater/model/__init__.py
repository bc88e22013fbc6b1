"""The pure heart: names, offsets, records, producers, streams. Values in, values out.

Never performs I/O, never reads a clock, never draws a random number.
"""
