"""Leases: which silos are alive, by the calls that they make."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from hedgerow.boosting.errors import (
    Unauthorised,
)
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.work import Rates
from hedgerow.coordinator.server.store import RegisteredSilo
from hedgerow.services.rpc.errors import (
    LeaseHeld,
    LeaseLost,
    VersionRefused,
)
from hedgerow.services.rpc.federation import LeaseGrant, Registration
from hedgerow.services.wire.job_view import SiloView

RENEW_SECONDS = 2.0
"""After how long a lease is renewed where silos are few."""
TOLD_BYTES = 2 << 20
"""Most bytes of columns' names in a reply; each silo has the same share of them."""
RENEWALS = 50
"""Most renewals of all silos in a second, unless leases are too short for that."""


@dataclass(slots=True)
class HeldLease:
    """A registered agent; ``expires`` is on the clock that the roster was given."""

    silo: Silo
    lease_id: str
    registration: Registration
    expires: float
    certificate_end: float = 0.0
    """Seconds since 1970."""
    crypto_answers: bool | None = None
    """Whether the silo's crypto process does, as its agent said last."""
    rates: Rates = field(default_factory=dict)
    """How fast the silo's machines are, as its agent said last."""


def _fitting(names: Sequence[str], room: int) -> tuple[str, ...]:
    """Return the first names that fit ``room``, bytes; 4 beside each are the message's."""
    ends = accumulate(len(name.encode()) + 4 for name in names)
    return tuple(name for name, end in zip(names, ends, strict=True) if end <= room)


class SiloRegistry:
    """The silos of a federation and their leases.

    Parameters
    ----------
    allowed : frozenset[str]
        Silos that may register; empty admits every silo with a certificate of the federation.
    lease_seconds : float
        A silo that makes no call for this long is lost.
    now : callable
        Monotonic clock, seconds.
    """

    def __init__(
        self,
        allowed: frozenset[str],
        lease_seconds: float,
        now: Callable[[], float],
        version: str,
    ) -> None:
        self._allowed = allowed
        self.lease_seconds = lease_seconds
        self._now = now
        self._version = version
        self._leases: dict[Silo, HeldLease] = {}
        self._alive: dict[Silo, Registration] | None = None
        self._heard: dict[Silo, float] = {}

    def admit(self, silo: Silo) -> None:
        """Raise :class:`Unauthorised` unless the silo is on the federation's roster."""
        if self._allowed and silo not in self._allowed:
            raise Unauthorised(f"{silo} is not on the roster of this federation")

    @property
    def allowed(self) -> frozenset[Silo]:
        """Silos that may register; empty where every silo of the federation may."""
        return frozenset(map(Silo, self._allowed))

    def of_roster(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of some silos that may register."""
        return frozenset(name for name in names if not self._allowed or name in self._allowed)

    def allow(self, allowed: frozenset[str]) -> None:
        """Replace the silos that may register; the leases of others end at the next sweep."""
        self._allowed = allowed
        for silo, lease in self._leases.items():
            if allowed and silo not in allowed:
                lease.expires = self._now()

    def register(
        self, silo: Silo, registration: Registration, certificate_end: float = 0.0
    ) -> LeaseGrant:
        """Grant a lease.

        Raises
        ------
        LeaseHeld
            Another agent of the same name is alive.
        VersionRefused
            The agent is more than one minor version older or newer.
        """
        self.admit(silo)
        check_version(silo, registration.version, self._version)
        held = self._leases.get(silo)
        if (
            held is not None
            and held.registration.instance_id != registration.instance_id
            and held.expires > self._now()
        ):
            remaining = held.expires - self._now()
            raise LeaseHeld(
                f"another agent named {silo} holds the lease for {remaining:.0f} s more; "
                "a silo has one agent",
                seconds=f"{remaining:.0f}",
            )
        lease = HeldLease(
            silo,
            secrets.token_hex(16),
            registration,
            self._now() + self.lease_seconds,
            certificate_end,
        )
        self._leases[silo], self._alive = lease, None
        self._heard[silo] = self._now()
        return LeaseGrant(lease.lease_id, self.lease_seconds, self._version)

    def touch(self, silo: Silo, lease_id: str) -> HeldLease:
        """Prolong a lease and return it.

        Raises
        ------
        LeaseLost
            The lease has ended; the agent registers again.
        """
        self.admit(silo)
        lease = self._leases.get(silo)
        if lease is None or not secrets.compare_digest(lease.lease_id, lease_id):
            raise LeaseLost(f"the lease of {silo} has ended; register again")
        lease.expires = self._now() + self.lease_seconds
        self._heard[silo] = self._now()
        return lease

    def signs(self, now: float) -> dict[Silo, float]:
        """Return when silos were last heard, on the clock that says ``now``: seconds since 1970."""
        return {silo: now - (self._now() - at) for silo, at in self._heard.items()}

    def stored(self, signs: Iterable[Silo]) -> None:
        """Forget signs of silos that are away, once they are stored."""
        for silo in signs:
            if silo not in self._leases:
                self._heard.pop(silo, None)

    @property
    def renew_seconds(self) -> float:
        """After how long silos are to renew: later the more they are, and three times a lease."""
        return min(max(RENEW_SECONDS, len(self._leases) / RENEWALS), self.lease_seconds / 3.0)

    def release(self, silo: Silo, lease_id: str) -> None:
        """End a lease."""
        self.touch(silo, lease_id)
        self._end(silo)

    def prolong(self, seconds: float) -> None:
        """Prolong all leases: this process heard nobody for so long."""
        for lease in self._leases.values():
            lease.expires += max(seconds, 0.0)

    def sweep(self) -> tuple[Silo, ...]:
        """Remove leases that have ended and return their silos."""
        ended = tuple(s for s, lease in self._leases.items() if lease.expires <= self._now())
        for silo in ended:
            self._end(silo)
        return ended

    def _end(self, silo: Silo) -> None:
        del self._leases[silo]
        self._alive = None

    @property
    def without_crypto(self) -> frozenset[Silo]:
        """Silos whose crypto process does not answer, as their agents say."""
        return frozenset(s for s, one in self._leases.items() if one.crypto_answers is False)

    @property
    def rates(self) -> dict[Silo, Rates]:
        """How fast the silos are that have said so."""
        return {silo: one.rates for silo, one in self._leases.items() if one.rates}

    def views(
        self,
        stored: Iterable[RegisteredSilo],
        awaited: Mapping[str, tuple[str, ...]],
        now: float,
        *,
        columns: bool = False,
    ) -> tuple[SiloView, ...]:
        """Return all silos as operators see them, sorted by name.

        Parameters
        ----------
        stored : iterable of RegisteredSilo
            Those that ever registered.
        columns : bool
            Whether with the names of their columns, as many as fit a reply.
        """
        room = TOLD_BYTES // max(len(self._leases), 1) if columns else 0
        found = {name: SiloView(name, alive=False) for name in self._allowed}
        signs = self.signs(now)
        for one in (one for one in stored if self.of_roster([one.name])):
            found[one.name] = SiloView(
                one.name,
                alive=False,
                version=one.version,
                strategies=one.strategies,
                row_count_class=one.row_count_class,
                last_seen=signs.get(Silo(one.name), one.last_seen),
            )
        for silo, lease in self._leases.items():
            own = lease.registration
            found[silo] = SiloView(
                silo,
                alive=True,
                version=own.version,
                strategies=own.strategies,
                policy=own.policy,
                xgboost=own.xgboost,
                columns=_fitting(own.columns, room),
                row_count_class=own.row_count_class,
                n_columns=own.n_columns,
                last_seen=signs[silo],
                certificate_end=lease.certificate_end or None,
                crypto_answers=lease.crypto_answers,
            )
        return tuple(replace(found[s], awaited=awaited.get(s, ())) for s in sorted(found))

    @property
    def alive(self) -> Mapping[Silo, Registration]:
        """Silos that hold a lease, sorted by name."""
        if self._alive is None:
            self._alive = {silo: self._leases[silo].registration for silo in sorted(self._leases)}
        return self._alive


def check_version(silo: Silo, agent: str, coordinator: str) -> None:
    """Raise :class:`VersionRefused` unless the two are at most one minor version apart.

    Coordinator and silos can then be upgraded on different days, in any order.
    """
    theirs, ours = _minor(agent), _minor(coordinator)
    if theirs is None or ours is None:
        raise VersionRefused(
            f"the agent of {silo} reported version {agent[:40]!r}; expected MAJOR.MINOR, as the "
            f"coordinator's {coordinator}"
        )
    if theirs[0] == ours[0] and abs(theirs[1] - ours[1]) <= 1:
        return
    older = "agent" if theirs < ours else "coordinator"
    raise VersionRefused(
        f"the agent of {silo} has version {agent}, the coordinator {coordinator}: they work "
        f"together at most one minor version apart; upgrade the {older}",
        agent=agent,
        coordinator=coordinator,
    )


def _minor(version: str) -> tuple[int, int] | None:
    found = re.match(r"([0-9]{1,6})\.([0-9]{1,6})(?![0-9])", version)
    return None if found is None else (int(found[1]), int(found[2]))
