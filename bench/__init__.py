"""The benchmarks: Headwater beside its peers, one ratio per run.

Owns all timing in this repository; nothing here is imported by the server or by its tests.
"""
