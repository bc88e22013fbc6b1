"""Tests of `headwater top`."""
