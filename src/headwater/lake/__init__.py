"""The cold tier: Parquet files under a Delta table, in a local directory or an S3 bucket.

Owns everything below the flush: stores, file layout, commits, ranged reads, caches. Never decides what is flushed,
when, or what may be forgotten. Every call here blocks: the engine makes them in worker threads.
"""
