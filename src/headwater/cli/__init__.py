"""The `headwater` command: one module per group of commands, the client they share beside them.
Owns what a person types and reads; never reaches into the engine, only through HTTP or `headwater.app`."""
