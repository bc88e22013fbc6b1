"""The official clients, unchanged, in scenarios that people run: cut connections, a killed server, shared documents.
Each scenario of the npm clients is a node script that exits 0 and prints JSON facts; the tests assert those."""
