"""What the halves of a protocol ask of their silo's vault, which keeps private keys and seeds.

:class:`~hedgerow.crypto.vault.local_vault.LocalVault` answers within the process, the crypto
service in a process of its own. Arguments and results are plain bytes, numbers, names and arrays.
Ciphertexts go in as bytes, end to end, and come out as uint8 arrays, one ciphertext a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.roles import Bins, Buffer, Ciphertexts, Scheme
from hedgerow.crypto.vault.noise_keys import NoiseSeed

LEAST_SILOS = 3
"""A sum of two silos would show each of them the other's vector."""


class CipherVault(Protocol):
    """What the halves of a vertical protocol ask of their silo's vault."""

    def create_cipher_key(
        self, session: str, key_bits: int = 2048, scheme: Scheme = "paillier"
    ) -> bytes:
        """Return the session's public key, made on the first call and kept.

        The key's scheme decides what all other calls of the session do; their shapes are the same.
        See :mod:`hedgerow.crypto.ciphers.schemes`.

        Parameters
        ----------
        session
            Names the job.
        key_bits
            Of a Paillier modulus; EC-ElGamal has one size.
        scheme
            ``paillier``, or ``elgamal`` for quantised gradients.

        Raises
        ------
        KeyRejected
            A size other than 2048, 3072 or 4096 bits, or the session's key is of another scheme.
        """
        ...

    def encrypt_gradients(
        self,
        session: str,
        layout: PairLayout,
        grad: NDArray[np.float64],
        hess: NDArray[np.float64],
    ) -> tuple[Ciphertexts, ...]:
        """Return one ciphertext a row, or several where its classes need them.

        Parameters
        ----------
        session
            Of a key made here.
        layout
            For the pairs of all classes.
        grad, hess
            Of shape (n_rows, n_classes), float64.

        Returns
        -------
        tuple of Ciphertexts
            Part k holds classes as :func:`~hedgerow.crypto.ciphers.packing.classes_per_ciphertext`
            tells.

        Raises
        ------
        PackingRefused
            A value is not finite or not within the layout's bounds.
        NothingHeld
            No key.
        """
        ...

    def hold_rows(
        self,
        session: str,
        public_key: bytes,
        layout: PairLayout,
        rows: Sequence[Buffer],
        bins: Bins,
        n_bins: Sequence[int],
        least_rows: int = 1,
    ) -> None:
        """Take a tree's row ciphertexts (all parts) and this party's bins of the same rows.

        They replace those of the tree before, which are let go first, even where these are refused.
        With ``least_rows`` above 1, :meth:`sum_bins` refuses sums that differ by fewer rows, see
        :func:`hedgerow.crypto.ciphers.bin_groups.check_groups`.

        Raises
        ------
        CiphertextRejected, HistogramRefused, KeyRejected
            The arguments do not fit together.
        """
        ...

    def sum_bins(
        self,
        session: str,
        nodes: Sequence[NDArray[np.integer]],
        *,
        cumulative: bool = False,
        missing: Sequence[bool] | None = None,
        order: NDArray[np.integer] | None = None,
    ) -> tuple[Ciphertexts, ...]:
        """Return the packed, re-randomised bins of nodes, one array a part.

        Parameters
        ----------
        session
            With rows held.
        nodes
            Strictly ascending row numbers of each node.
        cumulative
            Running sums over each feature's bins.
        missing
            Features whose last bin holds missing values, for running sums in both directions; see
            :func:`~hedgerow.crypto.ciphers.ciphertext_histogram.cumulate`.
        order
            Numbers of the sums to send and their order, counted over nodes, features and sums; all
            when left out.
        """
        ...

    def decrypt_histograms(
        self, session: str, layout: PairLayout, answer: Sequence[Buffer], n_bins: int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return grad and hess sums of :meth:`sum_bins`, exact, of shape (n_bins, n_classes).

        Units of ``2**-layout.fraction_bits``. int64, or objects of Python's int where sums are
        wider.

        Raises
        ------
        HistogramRefused, CiphertextRejected, PlaintextOutOfRange
            The answer is not one of ``n_bins`` bins under this key and layout.
        NothingHeld
            No key.
        """
        ...

    def encrypt_integers(self, session: str, values: Sequence[int]) -> Ciphertexts:
        """Return ciphertexts of signed integers under the session's own key."""
        ...

    def sum_selected(
        self,
        public_key: bytes,
        values: Buffer,
        index: NDArray[np.uint32],
        start: NDArray[np.int64],
    ) -> Ciphertexts:
        """Return re-randomised sums of ``values[index[k]]`` over start[s] ≤ k < start[s + 1]."""
        ...

    def decrypt_integers(self, session: str, values: Buffer) -> list[int]:
        """Return the signed integers of ciphertexts under the session's own key."""
        ...

    def blind_identifiers(self, session: str, ids: Sequence[bytes]) -> bytes:
        """Hash ids to the curve and raise them to the session's secret, made on the first call.

        Returns
        -------
        bytes
            32 bytes an id, in order. :class:`hedgerow.crypto.intersection.psi.PsiParty` uses it
            through :class:`hedgerow.crypto.intersection.psi.VaultBlinder`.
        """
        ...

    def blind_points(self, session: str, points: bytes) -> bytes:
        """Raise points, 32 bytes each, to the session's secret.

        Raises
        ------
        InvalidPoint
            A point of small order, or bytes that are no whole points.
        """
        ...

    def forget_session(self, session: str) -> None:
        """Erase all secrets of a session, and of those whose names continue it after a slash."""
        ...


@dataclass(frozen=True, slots=True)
class MaskGroup:
    """The silos that mask together, from one setup to the next."""

    session: str
    """Names the group: job, attempt and setup."""
    silo: str
    """This silo."""
    members: tuple[str, ...]
    """All of the group, sorted; a member's share number is its position."""
    public_keys: tuple[bytes, ...]
    """Their X25519 keys of this session, in the order of ``members``."""
    digest: bytes
    """SHA-256 of the members' signed key offers."""
    threshold: int
    """Shares that restore a self mask; signatures that an unmasking needs."""
    kem_keys: tuple[bytes, ...] = ()
    """Their ML-KEM-768 keys, likewise; empty where not all have one, and then X25519 stands
    alone."""


@dataclass(frozen=True, slots=True)
class SumTicket:
    """One sum of a group."""

    session: str
    number: int
    """Counts the group's sums from zero; never used twice."""
    view: bytes
    """Digest of all that the silo's vector is computed from, 32 bytes; bound into every seed and
    signature."""
    participants: tuple[str, ...]
    """Silos whose pair masks enter the sum, sorted."""
    n_values: int = 0
    """Length of the vector, to be counted."""
    self_mask: bool = True
    """With a self mask, whose shares were dealt before; without one the sum opens by itself when
    every participant's vector is there, and cannot be recovered."""
    group_mask: bool = False
    """With a mask that the coordinator cannot remove."""


@dataclass(frozen=True, slots=True)
class SumMasks:
    """The masks of a silo's vector in one sum, for :func:`hedgerow.crypto.masking.masks.masked`."""

    add: tuple[bytes, ...]
    subtract: tuple[bytes, ...]
    """``add`` and ``subtract``: 32-byte seeds."""
    commitment: bytes
    """To the self mask; empty without one."""
    tag: bytes
    """What the coordinator compares: the view, under group masks its keyed hash."""
    statement: bytes = b""
    """What is to be signed where the set of all participants was endorsed; else empty."""


@dataclass(frozen=True, slots=True)
class DealtBox:
    """Shares of a silo's self masks for one receiver."""

    box: bytes
    """Sealed; empty for the silo itself."""
    commitments: bytes
    """:func:`hedgerow.crypto.masking.masks.share_commitments`. Their holder recognises a wrong
    share and its sender."""
    ciphertext: bytes = b""
    """Of ML-KEM for the receiver, 1,088 bytes with the first box of a hybrid group; else empty."""


@dataclass(frozen=True, slots=True)
class TreeRoots:
    """Roots of the masks of the sums inside one tree, all over the set of its first sum."""

    pairs: Mapping[str, bytes]
    """By peer of the set, the root of the mask that this silo shares with it."""
    group: Mapping[str, bytes]
    """By silo of the set, the root of its group mask; empty without group masks."""
    tag_key: bytes = b""
    """Key of the tags of views under group masks; else empty."""


@dataclass(frozen=True, slots=True)
class Reveal:
    """What a silo reveals to unmask a sum over an agreed set."""

    shares: Mapping[str, bytes]
    """By silo of the set, this silo's share of its self mask."""
    tree: TreeRoots | None = None
    """For the sums inside the tree that this sum opens; never leaves the silo."""


class Vault(CipherVault, Protocol):
    """Keeps a silo's private keys; what leaves it is public or sealed, or revealed by the rules."""

    def create_mask_key(self, session: str, hybrid: bool = False) -> bytes:
        """Make a fresh X25519 key for a session and return its 32-byte public key.

        With ``hybrid`` its ML-KEM-768 public key follows, 1,184 bytes, where OpenSSL has that.
        """
        ...

    def join_group(self, group: MaskGroup) -> None:
        """Derive the roots shared with each member of the group.

        Raises
        ------
        VaultRefused
            No key was made for the session, the group is too small or does not hold this silo's
            key, or ``2 * threshold <= len(members)``.
        KeyRejected
            A member's public key is malformed.
        """
        ...

    def seal_shares(
        self,
        session: str,
        first: int,
        count: int,
        participants: tuple[str, ...],
        group_key: bool = False,
    ) -> dict[str, DealtBox]:
        """Draw self masks for sums ``first … first + count - 1``; return what each silo is dealt.

        With ``group_key`` each box has a key as well; that of the first silo whose box arrives is
        the one that all share.
        """
        ...

    def open_shares(
        self, session: str, first: int, count: int, boxes: Mapping[str, DealtBox]
    ) -> None:
        """Keep the shares that peers sealed for this silo, keyed by sender.

        Raises
        ------
        BoxInvalid
            A box does not open, has the wrong length, or shares that the sender has not committed
            to; names the sender.
        """
        ...

    def derive_masks(self, ticket: SumTicket, endorse: bool = False) -> SumMasks:
        """Return the masks of this silo's vector in a sum; once for each sum.

        With ``endorse`` all participants are endorsed as well, which spares :meth:`endorse`
        where nobody is lost.
        """
        ...

    def endorse(self, session: str, number: int, present: tuple[str, ...]) -> bytes:
        """Agree that the sum is unmasked over ``present``; return the statement to be signed."""
        ...

    def reveal_pair_seeds(
        self, session: str, number: int, present: tuple[str, ...]
    ) -> dict[str, bytes]:
        """Return the sum's pair seeds with those that ``present``, endorsed last, leaves out."""
        ...

    def reveal_shares(
        self, session: str, number: int, present: tuple[str, ...], opens_tree: bool = False
    ) -> Reveal:
        """Return shares of the self masks of ``present``, endorsed last; end the sum.

        With ``opens_tree`` also the roots of the masks of the sums inside a tree over that set,
        whose first sum this one is.
        """
        ...

    def derive_group_masks(
        self, session: str, number: int, present: tuple[str, ...]
    ) -> tuple[bytes, ...]:
        """Return the seeds of the group masks in a sum over ``present``, to be subtracted."""
        ...

    def derive_totals_key(self, session: str) -> bytes:
        """Return the key of the words that the silos check totals by; stays in the silo.

        See :mod:`hedgerow.crypto.masking.totals`.
        """
        ...

    def derive_noise(self, context: bytes) -> NoiseSeed:
        """Return the seed of a query's noise, or of draws, from a secret that all jobs share.

        Parameters
        ----------
        context : bytes
            Digest of all that the answer depends on.
        """
        ...
