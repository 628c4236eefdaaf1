from typing import Any

from numpy.typing import NDArray

_Data = bytes | bytearray | memoryview | NDArray[Any]

def cpu_has_ifma() -> bool: ...
def x25519(ifma: bool, points: _Data, scalar: _Data, /) -> bytes: ...
def map_to_curve(ifma: bool, uniform: _Data, /) -> bytes: ...
def decode(ifma: bool, encodings: _Data, /) -> bytes: ...
def encode(ifma: bool, points: _Data, /) -> bytes: ...
def sum_rows(
    ifma: bool,
    rows: _Data,
    width: int,
    index: _Data,
    starts: _Data,
    first: int,
    last: int,
    /,
) -> bytes: ...
def combine(ifma: bool, points: _Data, width: int, index: _Data, starts: _Data, /) -> bytes: ...
def fixed_table(ifma: bool, base: _Data, window: int, windows: int, /) -> bytes: ...
def encrypt(
    ifma: bool,
    window: int,
    g_table: _Data,
    p1_table: _Data,
    p2_table: _Data,
    half_table: _Data,
    scalars: _Data,
    g: _Data,
    h: _Data,
    /,
) -> bytes: ...
def rerandomise(
    ifma: bool,
    window: int,
    g_table: _Data,
    p1_table: _Data,
    p2_table: _Data,
    half_table: _Data,
    points: _Data,
    scalars: _Data,
    /,
) -> bytes: ...
def decrypt(ifma: bool, ciphertexts: _Data, negative_keys: _Data, /) -> bytes: ...
def log_table(ifma: bool, base: _Data, bits: int, /) -> bytes: ...
def log_steps(ifma: bool, base: _Data, n: int, /) -> bytes: ...
def log_solve(
    ifma: bool,
    points: _Data,
    bits: int,
    table: _Data,
    steps: _Data,
    check: _Data,
    limit: int,
    /,
) -> bytes: ...
