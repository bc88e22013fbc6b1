"""Jobs of the pipeline, one module each: plain functions of a Spark session and a node that return a summary.

Owns nothing itself. Each job may be run twice, and stopped anywhere.
"""
