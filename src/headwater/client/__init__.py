"""What a program needs to be a client of a server: one HTTP connection, pauses between attempts, server-sent events.

The command line and the Spark package send through it. It imports nothing of a server.
"""
