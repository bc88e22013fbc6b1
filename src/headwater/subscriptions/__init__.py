"""Subscriptions at work: the registry in log and catalog, wake-ups, leases by the clock, webhooks and their keys.

Never decides who may move a cursor: `model.subscriptions` does, and this room carries its decisions out.
"""
