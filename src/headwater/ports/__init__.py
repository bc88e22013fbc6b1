"""The outside as Protocols: clock, randomness, log, catalog, lake. A simulated world implements the same ones.

Owns nothing but the names: each Protocol stands in the module of what it is about. Never holds state of streams; every
other module gets time and chance from here.
"""

from __future__ import annotations

from headwater.ports.catalog import Catalog as Catalog
from headwater.ports.catalog import CatalogCopy as CatalogCopy
from headwater.ports.catalog import Change as Change
from headwater.ports.catalog import FilesSwapped as FilesSwapped
from headwater.ports.catalog import ReadCount as ReadCount
from headwater.ports.clock import CLOCK_STEP_MS_MAX as CLOCK_STEP_MS_MAX
from headwater.ports.clock import SYSTEM_CLOCK as SYSTEM_CLOCK
from headwater.ports.clock import Clock as Clock
from headwater.ports.clock import Rng as Rng
from headwater.ports.clock import SystemClock as SystemClock
from headwater.ports.clock import SystemRng as SystemRng
from headwater.ports.clock import breathe as breathe
from headwater.ports.clock import pause as pause
from headwater.ports.lake import Blobs as Blobs
from headwater.ports.lake import BlobsUnavailable as BlobsUnavailable
from headwater.ports.lake import Erasure as Erasure
from headwater.ports.lake import GcFiles as GcFiles
from headwater.ports.lake import Lake as Lake
from headwater.ports.lake import LakeGcResult as LakeGcResult
from headwater.ports.lake import Pending as Pending
from headwater.ports.lake import Relocated as Relocated
from headwater.ports.lake import Relocation as Relocation
from headwater.ports.lake import RowCounts as RowCounts
from headwater.ports.lake import Standing as Standing
from headwater.ports.lake import SwapFiles as SwapFiles
from headwater.ports.lake import Writer as Writer
from headwater.ports.log import BROKEN as BROKEN
from headwater.ports.log import FENCED as FENCED
from headwater.ports.log import UNKNOWN as UNKNOWN
from headwater.ports.log import CopiedLog as CopiedLog
from headwater.ports.log import FileLog as FileLog
from headwater.ports.log import Log as Log
from headwater.ports.log import LogCopy as LogCopy
from headwater.ports.log import LogFailure as LogFailure
from headwater.ports.log import SharedLog as SharedLog
