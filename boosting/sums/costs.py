"""Messages and bytes of exchanges and secure sums, for forecasts."""

from __future__ import annotations

from collections import Counter

from hedgerow.boosting.exchange import Call
from hedgerow.boosting.sums.maximum import N_PLACES
from hedgerow.boosting.work import Work
from hedgerow.crypto.masking.key_agreement import KEM_CIPHERTEXT_BYTES, KEM_KEY_BYTES
from hedgerow.crypto.masking.masks import SHARE_COMMITMENT_BYTES
from hedgerow.crypto.masking.shamir import SHARE_BYTES

SMALL = 64
"""Bytes of a reply or an offer of a few numbers."""

SEALING = 0.75
"""Exchanges that a masked sum's calls of the vault and signatures take as long as."""

_SIGNED_NAME = 100  # a name with its signature
_KEY = 900  # with its certificate and signature
KEM_KEY = KEM_KEY_BYTES + 76  # with its signature
CIPHERTEXT = KEM_CIPHERTEXT_BYTES + 3
_NAMED_SHARE = 48
_VIEW = 34  # the tag of a masked vector
_BOX = 50  # a sealed box without its shares, and its name
_SHARED_KEY = 32


class CostEstimate:
    """Messages and bytes of one silo, by kind of exchange.

    Parameters
    ----------
    dropout_recovery : bool
        Whether masked sums take two exchanges.
    """

    def __init__(
        self,
        n_silos: int,
        *,
        secure: bool,
        dropout_recovery: bool = True,
        shares_key: bool = False,
    ) -> None:
        self.n_silos = n_silos
        self._secure = secure
        self._recovery = secure and dropout_recovery
        self._key_bytes = _SHARED_KEY * shares_key
        self._n_sums = 0
        self.messages: Counter[str] = Counter()
        self.up: Counter[str] = Counter()
        self.down: Counter[str] = Counter()
        self.work: dict[str, dict[Work, float]] = {}

    def exchange(self, call: Call, up: float, down: float, times: int = 1) -> None:
        """Add exchanges."""
        self.messages[call.value] += times
        self.up[call.value] += round(up * times)
        self.down[call.value] += round(down * times)

    def do(self, call: Call, kind: Work, amount: float) -> None:
        """Add work that an exchange waits for."""
        own = self.work.setdefault(call.value, {})
        own[kind] = own.get(kind, 0.0) + amount

    def add(self, other: CostEstimate) -> None:
        """Add all of another bill."""
        for mine, theirs in zip(self._counts, other._counts, strict=True):
            mine.update(theirs)
        for call, own in other.work.items():
            for kind, amount in own.items():
                self.do(Call(call), kind, amount)

    @property
    def steps(self) -> dict[str, tuple[int, int, int]]:
        """What a :class:`~hedgerow.boosting.ports.Forecast` has of them."""
        return {call: (n, self.up[call], self.down[call]) for call, n in self.messages.items()}

    @property
    def _counts(self) -> tuple[Counter[str], Counter[str], Counter[str]]:
        return self.messages, self.up, self.down

    def sum(
        self, call: Call, n_bytes: float, reply: float, times: int = 1, *, whole: bool = False
    ) -> None:
        """Add sums of vectors of ``n_bytes`` (:mod:`hedgerow.boosting.sums`)."""
        if self._secure:
            self.do(call, Work.MASK, times * n_bytes / 8 * self.n_silos)
            self.do(call, Work.EXCHANGE, times * SEALING)
        if not self._recovery or whole:
            self.exchange(call, n_bytes + SMALL + _VIEW * self._secure, reply, times)
            return
        self._n_sums += times
        self.exchange(call, n_bytes + 2 * _SIGNED_NAME + _VIEW, self.n_silos * _SIGNED_NAME, times)
        self.exchange(call, self.n_silos * _NAMED_SHARE, reply, times)

    def float_sum(
        self, call: Call, n_bytes: float, reply: float, times: int = 1, *, bounds: int = 1
    ) -> None:
        """Add sums of which silos find ``bounds`` bounds first (:mod:`.floats`)."""
        found = 8 * (bounds * N_PLACES + bool(self._key_bytes))
        if bounds:
            self.sum(Call.SUMS, found, found + SMALL, times)
        self.sum(call, n_bytes, reply, times)

    def setups(self, batch: int, times: int = 1, n_sums: int | None = None) -> None:
        """Add key agreements, each with the shares of the self masks of ``n_sums`` sums after it.

        Without ``n_sums`` one setup is for all sums so far.
        """
        if not self._secure or not times:
            return
        dealt = self._recovery or self._key_bytes
        key = _KEY + (KEM_KEY if dealt else 0)
        self.exchange(Call.KEYS, key, self.n_silos * key, times)
        self.do(Call.KEYS, Work.EXCHANGE, times * SEALING * self.n_silos)
        if dealt:
            batches, shares = 1, 0
            if self._recovery:
                batches = -(-(self._n_sums if n_sums is None else n_sums) // batch)
                shares = batch * (SHARE_BYTES + SHARE_COMMITMENT_BYTES)
            boxes = (self.n_silos - 1) * (shares + _BOX + self._key_bytes)
            self.exchange(Call.SHARES, boxes, boxes, times * batches)
            ciphertexts = round((self.n_silos - 1) * CIPHERTEXT * times)
            self.up[Call.SHARES.value] += ciphertexts
            self.down[Call.SHARES.value] += ciphertexts
