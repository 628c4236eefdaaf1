"""What can go wrong between parties, by what happened; ``services`` maps each to a status code."""

import struct

FOREIGN = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
    ValueError, struct.error,
)  # fmt: skip
"""What reading malformed bytes may raise: decoders turn it into an error of their own."""


UNFIT = "its table cannot be used for this job; the log of its agent says why"
"""What other parties may read of a table's fault in a vertical job."""


class FederationError(Exception):
    """Root of what can go wrong between parties; each subclass has a status code in services.

    Parameters
    ----------
    **facts : str
        For programs: what the message says, by name.
    """

    def __init__(self, message: str = "", /, **facts: str) -> None:
        super().__init__(message.encode(errors="backslashreplace").decode())
        self.facts = facts


class DataWarning(UserWarning):
    """A table can be used, but probably is not what was meant; says where, never which value."""


class ResultWarning(DataWarning):
    """A finished job has something unusual, which its report has, too."""


class QuorumLost(FederationError):
    """Too few silos offered before a step's deadline."""


class StaleAttempt(FederationError):
    """The call belongs to an attempt that has been replaced."""


class PlacePassed(FederationError):
    """The barrier of this place was closed without this silo."""


class OfferRejected(FederationError):
    """The coordinator refused a silo's offer: malformed, out of range or against the protocol."""


class ModelRejected(OfferRejected):
    """Bytes that are no sound model of trees, of a file or of another party; says why."""


class LimitReached(FederationError):
    """A peer would make the other side keep more than its settings allow; names the limit."""


class JobStopped(FederationError):
    """The job was cancelled, has ended or has moved to a newer attempt."""


class InvalidJob(FederationError):
    """A job that cannot run: unknown key, parameter out of range, unmet requirement."""


class SchemaMismatch(FederationError):
    """Silos whose tables differ; names the silo and the first difference."""


class PolicyDeclined(FederationError):
    """A silo's own policy forbids the job; names the rule."""


class SignatureInvalid(FederationError):
    """A signature or certificate that does not prove what it should."""


class SumRefused(FederationError):
    """A silo does not let a sum be unmasked: that would isolate its data."""


class SumCorrupt(FederationError):
    """A sum that is not one of the silos' rows: wrong shares, other views, impossible totals."""


class DataError(FederationError):
    """A table that cannot be used: wrong file, missing column, label out of range."""


class LabelUnfit(DataError):
    """A label column that cannot be used: absent, of another kind, or with other classes."""


class Unreachable(FederationError):
    """A peer cannot be reached, or refused the connection; names its address."""


class VaultForgot(FederationError):
    """A crypto process has lost what it held for a job, as after a restart.

    Nobody else's fault: the attempt is repeated from the last finished round.
    """


class StateUnwritable(FederationError):
    """What must not be forgotten cannot be stored, most often because the disk is full.

    Nobody else's fault: the attempt is repeated once there is room.
    """


class Unauthorised(FederationError):
    """The caller's certificate does not allow the call."""
