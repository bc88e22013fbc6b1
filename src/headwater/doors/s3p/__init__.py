"""The S3P door: the same streams over pipelined TCP. `wire` makes `commands` of bytes, `replies` bytes;
those three never do I/O, and the server beside them never parses."""
