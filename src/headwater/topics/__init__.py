"""What works on topics beside the requests of clients: routers, and the way to topics wherever they live.

Never decides about a stream: its group does.
"""
