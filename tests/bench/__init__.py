"""The parts of benchmarks that can be wrong without anybody noticing: what a load sends, and what is compared."""
