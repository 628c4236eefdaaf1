"""Obfuscators: used once, and distributed as they say."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections import Counter

import gmpy2
import numpy as np
import pytest

from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.ciphers import obfuscators
from hedgerow.crypto.ciphers.obfuscators import KeyHolderObfuscators, UniformObfuscators
from hedgerow.crypto.ciphers.paillier import KeyHolder, PublicOperations
from hedgerow.crypto.ciphers.paillier_keys import PrivateKey, PublicKey, generate_private_key
from hedgerow.crypto.threads import aside

KERNELS = available_kernels()
FAST = Engine(KERNELS[0], workers=1)


@functools.cache
def private_key(bits):
    return generate_private_key(bits, insecure_test_key=True)


def sources(key, engine=FAST):
    return [
        KeyHolderObfuscators(key, engine),
        UniformObfuscators(key.public_key, engine),
    ]


def integers(source, n):
    return source._square.to_ints(source.take(n))


@pytest.mark.parametrize("which", range(2))
def test_no_obfuscator_is_given_twice(which):
    source = sources(private_key(256))[which]
    seen = []
    for n in (3, 40, 50, 1, 0, 7, 1025, 7):
        seen += integers(source, n)
    assert len(set(seen)) == len(seen) == 1133


def test_threads_never_share_an_obfuscator():
    source = UniformObfuscators(private_key(256).public_key, FAST)
    taken = []
    threads = [
        threading.Thread(target=lambda: taken.extend(integers(source, 7))) for _ in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 350


@pytest.mark.process
def test_a_forked_process_makes_its_own():
    script = (
        "import os\n"
        "from hedgerow.crypto.arithmetic.engine import Engine\n"
        "from hedgerow.crypto.ciphers.obfuscators import UniformObfuscators\n"
        "from hedgerow.crypto.ciphers.paillier_keys import generate_private_key\n"
        "key = generate_private_key(256, insecure_test_key=True).public_key\n"
        "UniformObfuscators(key, Engine(workers=1)).take(9)\n"
        "child = os.fork()\n"
        "source = UniformObfuscators(key, Engine(workers=1))\n"
        "assert len(source.take(9)) + len(source.take(9)) == 18\n"
        "assert not child or not os.waitpid(child, 0)[1]\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=200).returncode == 0


@pytest.mark.process
@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("which", range(2))
def test_a_forked_process_gives_none_that_its_parent_gives(which, finished):
    script = (
        "import os, threading\n"
        "from hedgerow.crypto.threads import aside\n"
        "from tests.crypto.test_obfuscators import integers, private_key, sources\n"
        f"source = sources(private_key(256))[{which}]\n"
        "integers(source, 5)\n"
        "source._ahead.result()\n"
        f"if not {finished}:\n"
        "    rest, gate = source._ahead.result(), threading.Event()\n"
        "    source._ahead = aside(lambda: gate.wait() and rest)\n"
        "ours, theirs = os.pipe()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.write(theirs, repr([int(v) for v in integers(source, 5)]).encode())\n"
        "    os._exit(0)\n"
        "assert not os.waitpid(child, 0)[1]\n"
        f"{finished} or gate.set()\n"
        "given = eval(os.read(ours, 1 << 16))\n"
        "assert len({*given, *integers(source, 5)}) == 10\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=200).returncode == 0


def test_a_table_is_made_when_it_costs_no_more_than_what_was_asked_for():
    source = UniformObfuscators(private_key(256).public_key, FAST)
    rows = (256 + 128) // 8
    for n in (rows - 2, 1, 1):
        source.take(n)
    if source._ahead is not None:
        source._ahead.result()
    assert source._table is None
    source.take(1)
    assert source._table is not None
    assert len(source._table.bases) == rows


@pytest.mark.skipif(KERNELS[0] == "gmpy2", reason="makes nothing ahead")
class TestWhatIsMadeAhead:
    @pytest.mark.parametrize(("seconds", "n"), [(0.0, 0), (1e9, 9)])
    def test_is_bounded_by_time(self, seconds, n, monkeypatch):
        monkeypatch.setattr(obfuscators, "_SECONDS_AHEAD", seconds)
        source = UniformObfuscators(private_key(256).public_key, FAST)
        source.take(9)
        assert len(source._ahead.result()) == n

    def test_is_not_waited_for_behind_other_work(self):
        source, gate = UniformObfuscators(private_key(256).public_key, FAST), threading.Event()
        try:
            other = aside(gate.wait)
            assert len({*integers(source, 3), *integers(source, 3)}) == 6
            assert not other.done()
        finally:
            gate.set()


@pytest.mark.slow
def test_obfuscators_decrypt_to_zero_on_every_kernel():
    key = private_key(512)
    for kernel in KERNELS:
        engine = Engine(kernel, workers=1)
        who = KeyHolder(key, engine)
        for source in sources(key, engine):
            assert who.decrypt(who.public.store(source.take(90))) == [0] * 90  # with a table


def test_a_taker_on_another_kernel_is_refused():
    public_key = private_key(256).public_key
    source = UniformObfuscators(public_key, Engine("gmpy2", workers=1))
    for kernel in KERNELS[:-1]:
        public = PublicOperations(public_key, Engine(kernel, workers=1))
        with pytest.raises(ValueError, match="of another modulus or kernel"):
            public.rerandomise(public.encode([1]), source)


# 31 − 1 = 2·3·5 and 43 − 1 = 2·3·7: small odd factors, where powers of one base fail.
TINY = PrivateKey(PublicKey(31 * 43, insecure_test_key=True), 31, 43)


@pytest.mark.slow
@pytest.mark.parametrize("source_class", [KeyHolderObfuscators, UniformObfuscators])
def test_obfuscators_are_uniform_over_all_nth_residues(source_class):
    n = TINY.public_key.n
    residues = {pow(r, n, n * n) for r in range(1, n) if gmpy2.gcd(r, n) == 1}
    assert len(residues) == 30 * 42
    key = TINY if source_class is KeyHolderObfuscators else TINY.public_key
    source = source_class(key, FAST)
    n_samples = 200 * len(residues)
    counts = Counter(int(v) for v in integers(source, n_samples))
    assert set(counts) == residues
    observed = np.array(list(counts.values()))
    chi_square = float(((observed - 200.0) ** 2 / 200.0).sum())
    degrees = len(residues) - 1
    assert abs(chi_square - degrees) < 8 * np.sqrt(2 * degrees)


def test_answers_show_no_jacobi_symbol_of_the_rows_that_were_summed():
    key = private_key(256)
    n = key.public_key.n
    uniform = UniformObfuscators(key.public_key, FAST)
    symbols = Counter(gmpy2.jacobi(v % n, n) for v in integers(uniform, 400))
    assert 120 < symbols[1] < 280
    assert symbols[1] + symbols[-1] == 400
