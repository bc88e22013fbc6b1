"""Topics at work beside the requests of clients: deliveries of dirty topics in their order, routers, and the way to
topics wherever they live. Never decides that order, nor about a stream: `model.schedule` and the stream's group do.
"""
