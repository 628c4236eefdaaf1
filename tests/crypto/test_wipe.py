"""Kernels leave nothing of what they computed: not on the stack, not in memory given back.

The installed libraries run in a process of their own, each kernel on a stack that was painted
before, see ``stack_watch.c``. After it, all that the kernel has written there must be zero, so no
secret has to be planted and searched for.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hatch_build
from hedgerow.crypto.arithmetic.engine import available_kernels

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "crypto/native"
SOURCES = "".join(path.read_text() for path in sorted(NATIVE.glob("*.[ch]")))
NAMES = set(re.findall(r"^KERNEL\([^,]+, (?:FN\()?(\w+)", SOURCES, re.MULTILINE))
CLEARED = int(re.search(r"STACK_BYTES \((\d+) << 10\)", SOURCES)[1]) << 10
PATHS = [path for path in ("portable", "avx2", "ifma") if path in available_kernels()]
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not PATHS or hatch_build.compiler() is None or sys.platform != "linux",
        reason="needs the kernels, a compiler and glibc",
    ),
]


def run_all_kernels(path, watch):
    """Run all kernels of a path; return what each left, by name."""
    from hedgerow.crypto import native
    from hedgerow.crypto.arithmetic import curve25519, curve_native, modular_native
    from hedgerow.crypto.arithmetic.modular import FixedBases

    found = {}
    plain = native.KernelLibrary.call

    def call(library, name, *arguments, result=ctypes.c_int64):
        bare = re.sub(r"^curve_(\w+)_(?:portable|avx2|ifma)$", r"\1", name)
        if bare not in NAMES:
            return plain(library, name, *arguments, result=result)
        kept = [native._argument(each) for each in arguments]
        kept = [ctypes.c_char_p(x) if isinstance(x, bytes) else x for x in kept]
        words = (ctypes.c_uint64 * 12)()
        for i, each in enumerate(kept):
            if isinstance(each, ctypes.c_int64):
                words[i] = each.value & (1 << 64) - 1
            else:
                words[i] = ctypes.cast(each, ctypes.c_void_p).value
        left, beyond = ctypes.c_int64(), ctypes.c_int64()
        watch.watched.restype = result
        function = ctypes.cast(getattr(library._library, name), ctypes.c_void_p)
        done = watch.watched(
            function, words, ctypes.c_int64(CLEARED), ctypes.byref(left), ctypes.byref(beyond)
        )
        before = found.get(bare, (0, 0))
        found[bare] = (before[0] + left.value, before[1] + beyond.value)
        return done

    native.KernelLibrary.call = call
    rng = np.random.default_rng(1)
    for half, power in ((1024, 2), (2048, 1)):
        m = (int.from_bytes(rng.bytes(half // 8), "little") | 1 | 1 << half - 1) ** power
        modulus = modular_native.NativeModulus(m, 1, path)
        wide = modulus.load(rng.integers(0, 256, (9, modulus.n_bytes - 1), np.uint8))
        modulus.multiply(wide, wide)
        modulus.add(wide, wide)
        modulus.power(wide, 0xFEDCBA9876543210)
        modulus.horner(wide, 3, 5)
        modulus.segment_products(wide, np.arange(9, dtype=np.uint32), np.array([0, 4, 9]))
        digits = rng.integers(0, 256, (9, 2), np.uint8)
        modulus.fixed_base_products(FixedBases(modulus, [3, 5]), digits)
        modulus.store(wide)
        del modulus
    gc.collect()
    curve = curve_native.NativeCurve(path, 1)
    curve.multiply(curve.map_to_curve(rng.bytes(48 * 5)), rng.bytes(32))
    x1, x2 = 12345 << 200, 54321 << 190
    keys = [curve25519.ristretto_encode(curve25519.multiply(x, curve25519.BASE)) for x in (x1, x2)]
    masker = curve.masker(*keys)
    g, h = np.array([1, -500, 70, 4000]), np.array([3, 0, 9, 2])
    rows = curve.load(masker.encrypt(rng.bytes(32 * 4), g, h))
    sums = rows.sum_segments(np.arange(4, dtype=np.uint32), np.arange(5))
    sums = sums.combine(np.array([0, 1, ~2, 3]), np.array([0, 2, 4]))
    sums.encode()
    opened = curve.opener(x1, x2, 1 << 13).decrypt(masker.rerandomise(sums, rng.bytes(64)))
    assert opened.tolist() == [[-499, 3], [3930, -7]], opened
    return found


@pytest.fixture(scope="module")
def watch(tmp_path_factory):
    newest = max(path.stat().st_mtime for path in NATIVE.glob("*.[ch]"))
    if min((NATIVE / f"{name}.so").stat().st_mtime for name in ("curve", "paillier")) < newest:
        pytest.fail("the kernels are older than their sources: run python hatch_build.py")
    library = tmp_path_factory.mktemp("watch") / "watch.so"
    command = [*hatch_build.compiler(), "-O1", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(HERE / "stack_watch.c"), "-ldl", "-lpthread"], check=True)
    return library


@pytest.mark.parametrize("path", PATHS)
def test_every_kernel_leaves_a_stack_of_zeros_and_gives_back_memory_of_zeros(path, watch):
    done = subprocess.run(
        [sys.executable, "-m", "tests.crypto.test_wipe", path, str(watch)],
        env={**os.environ, "LD_PRELOAD": str(watch), "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    expected = NAMES if path != "portable" else NAMES - {"modulus_squared"}
    assert said["kernels"] == {name: [0, 0] for name in expected}
    assert said["given_back"] >= 8
    assert said["unwiped"] == 0


if __name__ == "__main__":
    _watch = ctypes.CDLL(sys.argv[2])
    _found = run_all_kernels(sys.argv[1], _watch)
    print(
        json.dumps(
            {
                "kernels": _found,
                "given_back": _watch.blocks_given_back(),
                "unwiped": _watch.bytes_unwiped(),
            }
        )
    )
