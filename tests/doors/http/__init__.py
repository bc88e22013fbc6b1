"""The tests of the HTTP door's pure parts: bytes in, values out, and back.
No socket is opened here; whole connections are tested elsewhere."""
