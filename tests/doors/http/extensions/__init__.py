"""The extension spec met from outside, section by section: buckets, snapshots, bootstrap, SSE, URL encoding.
Every test names its section; nothing in here imports the product."""
