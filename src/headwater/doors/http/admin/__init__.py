"""Calls below /__headwater/: what operators and the data pipeline ask of a node.

Never serves a client's reads or writes of one stream: the modules beside this folder do.
"""
