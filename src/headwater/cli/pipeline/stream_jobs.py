"""Commands of the pipeline. Owns their options. Never does the work: the jobs do."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds this module's commands to `headwater pipeline run`."""
