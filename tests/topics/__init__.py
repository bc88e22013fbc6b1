"""The tests of what works on topics beside requests: in one event loop, and on real nodes.
Processes are simulated by engines that are joined by a wire."""
