"""What the engine decided, as S3P replies.
Owns the words of every refusal after parsing. Never closes a connection: only the parser's refusals do."""

from bisect import bisect_left
from itertools import accumulate
from typing import Final

from headwater import errors
from headwater.doors.s3p import replies
from headwater.doors.s3p.replies import Code
from headwater.engine.engine import Engine
from headwater.engine.pending_answers import Outcome
from headwater.errors import Failure, NotServedHere
from headwater.model.events import Appended

_OK: Final = replies.ok()


def replied(name: bytes, outcome: Outcome, counts: list[int]) -> bytes:
    """The replies to writes to the stream called `name`, submitted as one: `counts` has the records of each."""
    if type(outcome) is Appended:
        if len(counts) > 1:
            return _id_replies(outcome.ms, outcome.n, counts)
        record_id = b"%d-%d" % (outcome.ms, outcome.n + counts[0] - 1)
        return b"$%d\r\n%b\r\n" % (len(record_id), record_id)
    if isinstance(outcome, Failure):
        return failed(name, outcome) * len(counts)
    return _OK


def _id_replies(ms: int, n: int, counts: list[int]) -> bytes:
    """The last id of each command. Ids of the same length share all but their last digits, so they are joined."""
    lasts = list(accumulate(counts, initial=n - 1))
    out, at = [], 1
    while at < len(lasts):
        digits = len(str(lasts[at]))
        upto = bisect_left(lasts, 10**digits, at)
        head = f"${len(str(ms)) + 1 + digits}\r\n{ms}-"
        out.append(head + f"\r\n{head}".join(map(str, lasts[at:upto])) + "\r\n")
        at = upto
    return "".join(out).encode()


def not_here(engine: Engine, elsewhere: NotServedHere) -> errors.MemberUnavailable:
    """The failure of a command that reached a process which does not own its stream."""
    try:
        return errors.MemberUnavailable(engine.questions.owner(elsewhere.group))
    except errors.MemberUnavailable as unowned:
        return unowned


def failed(name: bytes, failure: Failure) -> bytes:
    """The error reply to a command that was understood: its code leaves the connection open, whatever the failure."""
    row = errors.row(failure)
    code = Code(row.s3p)
    if code.closes_connection:
        # Section 4: what was parsed and then refused is recoverable. These codes are for what cannot be parsed.
        code = Code.UNAVAILABLE if row.retryable else Code.CONFLICT
    stream = f"stream {replies.printable(name)}"
    if isinstance(failure, errors.StreamNotFound | errors.StreamSoftDeleted):
        message = f"{stream} does not exist"
    elif isinstance(failure, errors.StreamExists):
        message = f"{stream} already exists"
    elif isinstance(failure, errors.OutcomeUnknown):
        message = f"member {failure.member} went away before it replied; a write may or may not have taken effect"
    elif isinstance(failure, errors.ContentTypeMismatch):
        message = f"{stream} holds {failure.expected}, and a record is not JSON"
    elif isinstance(failure, errors.NotAuthenticated):
        message = f"this needs {failure.needed}; send AUTH with a key or a token first"
    else:
        message = failure.message()
    return replies.error(code, message)
