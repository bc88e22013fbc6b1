"""Topics at work, beside the requests of clients: deliveries in their order, routers, queues, and the way to topics
wherever they live. Never decides about a stream: its group does.
"""
