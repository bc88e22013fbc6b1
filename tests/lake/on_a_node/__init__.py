"""The tests of a node with its lake: settling, cold reads, crashes, outages, and other readers of the same table."""
