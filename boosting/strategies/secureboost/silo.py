"""A party's half: the active or the passive one, and what others learn when it fails."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hedgerow.boosting.errors import (
    UNFIT,
    DataError,
    FederationError,
    JobStopped,
    PlacePassed,
    QuorumLost,
    SchemaMismatch,
    StaleAttempt,
    StateUnwritable,
    Unreachable,
    VaultForgot,
)
from hedgerow.boosting.exchange import SiloChannel
from hedgerow.boosting.ports import Artefact, SiloStart
from hedgerow.boosting.strategies.secureboost.parameters import SecureBoost
from hedgerow.boosting.strategies.secureboost.refusals import REFUSED, public_text
from hedgerow.boosting.strategies.secureboost.steps import STEPS, StepName

if TYPE_CHECKING:
    from hedgerow.crypto.vault.interface import Vault

_ENDS_ATTEMPT = (JobStopped, StaleAttempt, PlacePassed, QuorumLost, StateUnwritable, VaultForgot)
"""Errors that end an attempt, not the job, or that others have reported already."""


def participate(
    parameters: SecureBoost, link: SiloChannel, vault: Vault | None, start: SiloStart
) -> Artefact | None:
    """Take part until the job ends; return this party's part of the model, which stays here."""
    from hedgerow.boosting.strategies.secureboost.active import ActiveParty
    from hedgerow.boosting.strategies.secureboost.courier import SealedChannel
    from hedgerow.boosting.strategies.secureboost.passive import PassiveParty

    assert start.codec is not None, "a vertical party seals its messages"
    context = f"{start.job_id}/{start.attempt}".encode()
    courier = SealedChannel(
        link, str(start.silo), context, start.codec, os.urandom, start.first_round,
        in_clear=parameters.encryption == "plain",
    )  # fmt: skip
    party: ActiveParty | PassiveParty
    try:
        if str(start.silo) == parameters.active:
            party = ActiveParty(parameters, courier, vault, start)
        else:
            party = PassiveParty(parameters, courier, vault, start)
        return party.run()
    except _ENDS_ATTEMPT:
        raise
    except SchemaMismatch as error:
        # It names columns: the cause is for the log of this silo alone.
        if courier.next is not StepName.END:
            courier.refuse(STEPS[courier.next], UNFIT)
        raise DataError(UNFIT) from error
    except (FederationError, *REFUSED) as error:
        # What a vault refuses is what another party sent.
        if not isinstance(error, Unreachable) and courier.next is not StepName.END:
            courier.refuse(STEPS[courier.next], public_text(error))
        if isinstance(error, FederationError):
            raise
        raise DataError(public_text(error)) from error
