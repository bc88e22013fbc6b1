"""The tests of what a node keeps secret. Nothing here prints one."""
