"""Access through the HTTP door: who may do what, on running nodes."""
