"""Numbers and ciphertexts in the frames of the crypto service: bytes, in pieces of about 1 MiB."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.api.crypto.v1 import cipher_pb2 as pb
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.roles import Bins, Buffer, Ciphertexts, ciphertext_rows
from hedgerow.crypto.ciphers.sparse_bins import SparseBins
from hedgerow.crypto.errors import InputRefused

FRAME_BYTES = 1 << 20
MAX_NODES = 1 << 20
"""Most nodes of a request."""
WIDE_BYTES = 32
"""Of a sum that may be wider than 64 bits."""

Received = dict[str, list[Any]]
"""Contents of a call's frames after its head, by field of the frame."""


def layout(layout: PairLayout) -> pb.PairLayout:
    """Return a layout's message."""
    return pb.PairLayout(**asdict(layout))


def read_layout(layout: pb.PairLayout) -> PairLayout:
    """Return the layout of a message."""
    return PairLayout(*(getattr(layout, field.name) for field in fields(PairLayout)))


def pieces(data: bytes | memoryview | NDArray[Any], unit: int = 1) -> Iterator[bytes]:
    """Yield bytes in pieces of whole units, one at least."""
    view = memoryview(data)  # type: ignore[arg-type]
    if view.nbytes:
        view = view.cast("B")
    step = max(FRAME_BYTES // unit, 1) * unit
    for at in range(0, max(view.nbytes, 1), step):
        yield bytes(view[at : at + step])


def blocks(parts: Iterable[Buffer]) -> Iterator[pb.CiphertextBlock]:
    """Yield parts of ciphertexts as blocks, one at least for each."""
    for number, part in enumerate(parts):
        width = part.shape[1] if isinstance(part, np.ndarray) and part.ndim == 2 else 0
        flat = np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part
        for piece in pieces(flat, max(width, 1)):
            yield pb.CiphertextBlock(part=number, ciphertext_bytes=width, data=piece)


def parts(blocks: Iterable[pb.CiphertextBlock]) -> list[bytes]:
    """Return the parts of ciphertexts, end to end."""
    pieces: list[list[bytes]] = []
    for block in blocks:
        if block.part > len(pieces):
            raise InputRefused(f"expected part {len(pieces)} of ciphertexts, received {block.part}")
        if block.part == len(pieces):
            pieces.append([])
        pieces[block.part].append(block.data)
    return [b"".join(part) for part in pieces]


def arrays(blocks: Iterable[pb.CiphertextBlock]) -> tuple[Ciphertexts, ...]:
    """Return the parts of an answer, one ciphertext a row."""
    received = list(blocks)
    width = max((block.ciphertext_bytes for block in received), default=1)
    return tuple(ciphertext_rows(part, width) for part in parts(received))


def numbers(received: Received, field: str, dtype: str) -> NDArray[Any]:
    """Return the numbers of a field's frames, of an unsigned, signed or float type."""
    data = b"".join(received[field])
    size = np.dtype(dtype).itemsize
    if len(data) % size:
        raise InputRefused(f"{field}: expected numbers of {size} bytes, received {len(data)} bytes")
    return np.frombuffer(data, dtype)


def signed_bytes(values: NDArray[Any]) -> tuple[int, bytes]:
    """Return integers in two's complement, and the bytes of each."""
    if values.dtype != object:
        return 8, values.astype("<i8").tobytes()
    whole = [int(v).to_bytes(WIDE_BYTES, "little", signed=True) for v in values.flat]
    return WIDE_BYTES, b"".join(whole)


def signed(data: bytes, n_bytes: int) -> NDArray[Any]:
    """Return the integers of :func:`signed_bytes`: int64, or Python's."""
    if n_bytes == 8:
        return np.frombuffer(data, "<i8").astype(np.int64)
    found = np.empty(len(data) // WIDE_BYTES, object)
    found[:] = [
        int.from_bytes(data[at : at + WIDE_BYTES], "little", signed=True)
        for at in range(0, len(data), WIDE_BYTES)
    ]
    return found


def gradients(rows: pb.GradientRows, n_classes: int) -> tuple[NDArray[np.float64], ...]:
    """Return gradients and hessians, each of shape (n_rows, n_classes)."""
    if len(rows.grad) != len(rows.hess) or len(rows.grad) % (8 * n_classes):
        raise InputRefused(
            f"expected rows of {8 * n_classes} bytes, received {len(rows.grad)} bytes of grad and "
            f"{len(rows.hess)} of hess"
        )
    return tuple(np.frombuffer(v, "<f8").reshape(-1, n_classes) for v in (rows.grad, rows.hess))


def nodes(rows: Iterable[pb.NodeRows], n_nodes: int) -> list[NDArray[np.uint32]]:
    """Return the row numbers of each node."""
    if n_nodes > MAX_NODES:
        raise InputRefused(f"expected at most {MAX_NODES} nodes, received {n_nodes}")
    pieces: Received = defaultdict(list)
    sent: dict[int, str] = {}
    for piece in rows:
        if piece.node >= n_nodes:
            raise InputRefused(f"expected nodes below {n_nodes}, received {piece.node}")
        sent[piece.node] = f"rows of node {piece.node}"
        pieces[sent[piece.node]].append(piece.rows)
    found = [np.empty(0, np.uint32)] * n_nodes  # a head alone asks for a million
    for node, field in sent.items():
        found[node] = numbers(pieces, field, "<u4")
    return found


def hold_rows(
    bins: Bins, n_bins: Sequence[int]
) -> tuple[pb.HoldRowsHead, dict[str, Iterator[bytes]]]:
    """Return what a head says of bins, and their frames."""
    head = pb.HoldRowsHead(n_bins=[int(n) for n in n_bins])
    if isinstance(bins, SparseBins):
        head.sparse_rows = len(bins)
        head.usual_bins.extend(bins.usual.tolist())
        counts = np.diff(bins.starts).astype("<u4")
        return head, {"cells": pieces(counts), "listed": pieces(bins.rows.astype("<u4"))}
    head.bin_bytes = bins.itemsize
    return head, {"bins": pieces(np.ascontiguousarray(bins, bins.dtype.newbyteorder("<")))}


def bins(head: pb.HoldRowsHead, received: Received) -> Bins:
    """Return bin numbers, of shape (n_rows, n_features), or those that are not usual."""
    if head.usual_bins:
        counts = numbers(received, "cells", "<u4").astype(np.int64)
        return SparseBins(
            head.sparse_rows,
            np.array(head.n_bins, np.int64),
            np.array(head.usual_bins, np.int64),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            numbers(received, "listed", "<u4"),
        )
    if head.bin_bytes not in (1, 2) or not head.n_bins:
        raise InputRefused(
            f"expected features with bins of 1 or 2 bytes, received {len(head.n_bins)} features "
            f"with bins of {head.bin_bytes} bytes"
        )
    bins = numbers(received, "bins", f"<u{head.bin_bytes}")
    if len(bins) % len(head.n_bins):
        raise InputRefused(f"expected rows of {len(head.n_bins)} bins, received {len(bins)} bins")
    return bins.reshape(-1, len(head.n_bins))


def one_part(received: Received) -> bytes:
    """Return ciphertexts that have one part."""
    found = parts(received["ciphertexts"])
    if len(found) > 1:
        raise InputRefused(f"expected one part of ciphertexts, received {len(found)}")
    return found[0] if found else b""
