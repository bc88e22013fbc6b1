"""The files below deploy/: each judged by a tool of its own, and their commands run as far as this machine can."""
