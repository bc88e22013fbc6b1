"""The fenced code of a page, with where it stands. It reads pages as they are and changes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Fence(NamedTuple):
    language: str
    text: str
    line: int
    """Of the page, where the code begins."""


def fences(page: Path) -> list[Fence]:
    text = page.read_text()
    return [Fence(found[1], found[2], text.count("\n", 0, found.start()) + 2) for found in _FENCE.finditer(text)]


def commands(text: str) -> list[str]:
    """The commands of a shell block, those over several lines joined."""
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
