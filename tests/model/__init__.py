"""The tests of the pure model, beside a slow and obvious second one.
Nothing here opens a file or reads a clock."""
