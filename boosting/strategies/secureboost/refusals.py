"""What a vault raises, and what other parties may read of an error."""

from __future__ import annotations

from hedgerow.boosting.errors import FederationError
from hedgerow.crypto.errors import Refusal

REFUSED = (Refusal, ValueError, LookupError)
"""What a vault, here or in its own process, raises at what it cannot use."""


def public_text(error: Exception) -> str:
    """Return what other parties may read of an error: of a foreign one, only its type.

    The text of a foreign exception may quote a value of a table.
    """
    known = isinstance(error, FederationError | Refusal)
    return str(error) if known else type(error).__name__
