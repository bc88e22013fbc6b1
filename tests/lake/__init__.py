"""Tests of the lake, below the engine: stores, files, table, reader, caches. They start no server of ours."""
