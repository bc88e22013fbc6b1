"""Tests of `headwater ctl`."""
