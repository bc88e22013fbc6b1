"""The HTTP door: Durable Streams over plain HTTP/1.1, long-poll and SSE.

Never awaits on the append path: a request is parsed, judged and answered by plain calls and callbacks.
"""
