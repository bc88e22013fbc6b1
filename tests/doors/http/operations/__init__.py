"""The six operations of the base protocol sentence by sentence, and what Headwater adds to them, met from outside.
Nothing in here imports the product; what a crash may and may not do is tried with real ones."""
