"""Subscriptions: the pure rules, the guard against forged requests, and whole nodes with real receivers and kills.
Nothing in here reaches beyond this machine."""
