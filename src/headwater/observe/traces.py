"""Whether a process sends traces.

Owns the start and the end of it. Never loads OpenTelemetry when the setting `traces` is off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater import spans
from headwater.config import Settings
from headwater.start_refused import CannotStart

if TYPE_CHECKING:
    from headwater.observe.tracing import OtelTracer


def begin(settings: Settings, instance: str) -> OtelTracer | None:
    """From now on spans are begun, if the settings say so. Raises CannotStart without the extra."""
    if not settings.traces:
        return None
    try:
        from headwater.observe import tracing
    except ImportError as error:
        raise CannotStart(
            f"traces need OpenTelemetry, which is not installed ({error.name}): pip install 'headwater[otel]', or "
            "leave --traces out"
        ) from None
    return tracing.begin(settings.trace_one_in, instance)


def end(tracer: OtelTracer) -> None:
    """What is left is sent, if that does not take long. Blocks for some seconds at most."""
    spans.tracer = None
    tracer.close()
