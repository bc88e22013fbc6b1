"""The data pipeline on Spark: a data source and sink (`format("headwater")`), and jobs that keep and use the lake.

Owns everything that runs in a Spark driver or executor. Never runs in a node: it reaches one over HTTP, and the lake
through its object store.
"""
