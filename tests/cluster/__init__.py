"""Tests of members that serve one set of groups together."""
