"""Proxies in front of a node, and browsers: what of a request is believed, and what pages are told. One node."""
