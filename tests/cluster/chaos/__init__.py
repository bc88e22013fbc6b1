"""A cluster under faults: clients that record what they were told, faults from a seed, and a checker of the record.
Owns its own processes and networks; it never looks inside a node, and plants faults only in processes of its own."""
