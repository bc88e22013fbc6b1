"""Why a node does not start, and how it says so.

Never decides it: whoever finds something raises CannotStart.
"""

from __future__ import annotations

import sys

from headwater.observe import log_lines

EXIT_OK, EXIT_FAILED = 0, 1


class CannotStart(Exception):
    """Something outside has to change first; the message says what."""


def refused(error: Exception) -> int:
    print(log_lines.told(f"error: {error}"), file=sys.stderr)
    return EXIT_FAILED
