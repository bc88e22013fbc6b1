"""The tests of the data pipeline, on a local Spark and on a real standalone cluster."""
