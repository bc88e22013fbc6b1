"""Several processes that serve one set of groups: who owns what, and how a request reaches its owner.

Never decides about a stream: the owner's engine does.
"""
