"""What a node keeps secret, and what it says with the help of that.

Owns the files of secrets. Never lets one into the log, the catalog or a log line.
"""
