"""Every kernel against plain integers, and the C kernels' refusals."""

from __future__ import annotations

import itertools
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.crypto.arithmetic import curve25519, modular, modular_gmpy2
from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.arithmetic.modular import FixedBases
from hedgerow.crypto.arithmetic.worker_processes import run_in_processes
from hedgerow.crypto.errors import InvalidPoint

KERNELS = available_kernels()
WITH_WORKERS = [
    pytest.param(name, marks=pytest.mark.process) if name == "gmpy2" else name for name in KERNELS
]
"""gmpy2's workers are processes, the C kernels' are threads."""
SIZES = [61, 512, 1024, 2048, 3072, 4096, 6144, 8192]


def odd_number(bits, seed=0):
    return random.Random(seed + bits).getrandbits(bits) | 1 | 1 << (bits - 1)


def residues_of(modulus, n, seed=1):
    rng = random.Random(seed)
    edge = [0, 1, int(modulus.value) - 1]
    return [*edge, *(rng.randrange(int(modulus.value)) for _ in range(n - len(edge)))]


@pytest.fixture(params=WITH_WORKERS)
def engine(request):
    return Engine(request.param, workers=2)


def test_compiled_kernels_are_present_where_a_compiler_is():
    import hatch_build

    if hatch_build.compiler() is not None:
        assert "portable" in KERNELS


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("bits", SIZES)
def test_every_operation_equals_plain_integers(engine, bits, power):
    m = odd_number(bits // power) ** power
    modulus = engine.modulus(m)
    xs = residues_of(modulus, 19)
    a = modulus.from_ints(xs)
    b = a[::-1]
    assert modulus.to_ints(a) == xs
    assert modulus.to_ints(modulus.multiply(a, b)) == [
        x * y % m for x, y in zip(xs, xs[::-1], strict=True)
    ]
    assert modulus.to_ints(modulus.multiply(a, a[5:6])) == [x * xs[5] % m for x in xs]
    assert modulus.to_ints(modulus.add(a, b)) == [
        (x + y) % m for x, y in zip(xs, xs[::-1], strict=True)
    ]
    for exponent in (0, 1, 2, 31, 32, 0xDEADBEEF5):
        assert modulus.to_ints(modulus.power(a, exponent)) == [pow(x, exponent, m) for x in xs]
    expected = []
    for i in range(0, 18, 3):
        x, y, z = xs[i : i + 3]
        expected.append(pow(x, 1 << 26, m) * pow(y, 1 << 13, m) * z % m)
    assert modulus.to_ints(modulus.horner(a[:18], 3, 13)) == expected
    assert modulus.to_ints(modulus.ones(3)) == [1, 1, 1]
    product = 1
    for x in xs[1:]:
        product = product * x % m
    assert modulus.to_ints(modulus.product(a[1:])) == [product]


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("bits", [512, 2048])
def test_wide_bytes_are_reduced(engine, bits, power):
    modulus = engine.modulus(odd_number(bits // power) ** power)
    rng = random.Random(bits)
    for width in (1, bits // 8, bits // 8 + 3, bits // 4, bits // 4 + 7):
        values = [rng.getrandbits(8 * width) for _ in range(9)] + [(1 << 8 * width) - 1, 0]
        data = modular.ints_to_bytes(values, width)
        assert modulus.to_ints(modulus.load(data)) == [v % modulus.value for v in values]


def test_multiples_of_the_root_of_a_square_are_exact(engine):
    n = odd_number(1024)
    modulus = engine.modulus(n * n)
    xs = [n * (n - 1), n, n - 1, n + 1, 0, n * n - 1, n * n - n]
    a = modulus.from_ints(xs)
    assert modulus.to_ints(a) == xs
    assert modulus.to_ints(modulus.multiply(a, a)) == [x * x % (n * n) for x in xs]
    sums = modulus.add(a, a)
    assert modulus.to_ints(sums) == [2 * x % (n * n) for x in xs]
    assert modulus.to_ints(modulus.multiply(sums, sums)) == [4 * x * x % (n * n) for x in xs]


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=40), seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("kernel", KERNELS)
def test_segment_products_equal_a_loop(kernel, lengths, seed):
    m = odd_number(512)
    modulus = Engine(kernel, workers=1).modulus(m)
    xs = residues_of(modulus, 11)
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    index = np.random.default_rng(seed).integers(0, 11, start[-1]).astype(np.uint32)
    expected = []
    for low, high in itertools.pairwise(start):
        product = 1
        for k in index[low:high]:
            product = product * xs[k] % m
        expected.append(product)
    result = modulus.segment_products(modulus.from_ints(xs), index, start)
    assert modulus.to_ints(result) == expected


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("bits", [512, 2048, 4096])
def test_fixed_bases_equal_powers(engine, bits, power):
    m = odd_number(bits // power) ** power
    modulus = engine.modulus(m)
    bases = residues_of(modulus, 6)[2:]
    digits = np.random.default_rng(3).integers(0, 256, (9, 4)).astype(np.uint8)
    digits[0], digits[1] = 0, 255
    expected = []
    for row in digits.tolist():
        product = 1
        for base, digit in zip(bases, row, strict=True):
            product = product * pow(base, digit, m) % m
        expected.append(product)
    assert modulus.to_ints(FixedBases(modulus, bases).products(digits)) == expected


@pytest.mark.parametrize("window", [7, 8, 9, 10])
def test_tables_of_every_window_give_the_same_products(window, monkeypatch):
    monkeypatch.setattr(modular_gmpy2, "_digit_window", lambda m, n_bases: window)
    modulus = Engine("gmpy2", workers=1).modulus(odd_number(512))
    bases = residues_of(modulus, 11)
    digits = np.random.default_rng(5).integers(0, 256, (20, 11)).astype(np.uint8)
    expected = [
        math.prod(pow(base, d, modulus.value) for base, d in zip(bases, row, strict=True))
        % modulus.value
        for row in digits.tolist()
    ]
    assert modulus.to_ints(FixedBases(modulus, bases).products(digits)) == expected


def test_the_window_of_a_table_is_the_longest_that_its_memory_allows(monkeypatch):
    assert modular_gmpy2._digit_window(odd_number(512), 5) == 10
    sizes = {}
    for bits in (1 << 11, 1 << 12):
        n_bases = 144 if bits == 1 << 11 else 272  # of a 2048-bit key's factor, and of its square
        window = modular_gmpy2._digit_window(odd_number(bits), n_bases)
        sizes[bits] = (-(-8 * n_bases // window) << window) * (bits // 8 + 48)
    assert max(sizes.values()) <= modular_gmpy2._MOST_TABLE_BYTES


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_products_of_two_bases_shared_out_together_are_those_of_each(engine, workers, monkeypatch):
    monkeypatch.setattr(modular, "LEAST_SHARED_WORK", 8)
    shared = Engine(engine.kernel, workers=workers)
    rng = np.random.default_rng(6)
    wanted, expected = [], []
    for bits, n_bases in ((512, 5), (1024, 3)):
        modulus = shared.modulus(odd_number(bits))
        bases = residues_of(modulus, n_bases)
        digits = rng.integers(0, 256, (1300, n_bases)).astype(np.uint8)
        wanted.append((FixedBases(modulus, bases), digits))
        alone = Engine(engine.kernel, workers=1).modulus(modulus.value)
        expected.append(alone.to_ints(FixedBases(alone, bases).products(digits)))
    found = wanted[0][0].modulus.all_products(wanted)
    got = [b.modulus.to_ints(products) for (b, _), products in zip(wanted, found, strict=True)]
    assert got == expected


@pytest.mark.parametrize("kernel", WITH_WORKERS)
def test_a_batch_shared_among_workers_equals_one_core(kernel, monkeypatch):
    monkeypatch.setattr(modular, "LEAST_SHARED_WORK", 8)
    m = odd_number(512)
    alone, shared = (Engine(kernel, workers=w).modulus(m) for w in (1, 2))
    xs = residues_of(alone, 300)
    index = np.random.default_rng(0).integers(0, 300, 3000).astype(np.uint32)
    start = np.array([0, 5, 5, 1200, 1201, 2900, 3000], np.int64)
    digits = np.random.default_rng(1).integers(0, 256, (100, 5)).astype(np.uint8)
    results = []
    for modulus in (alone, shared):
        a = modulus.from_ints(xs)
        results.append(
            [
                modulus.store(modulus.multiply(a, a)).tobytes(),
                modulus.store(modulus.power(a, 3**70)).tobytes(),
                modulus.store(modulus.horner(a, 10, 9)).tobytes(),
                modulus.store(modulus.segment_products(a, index, start)).tobytes(),
                modulus.store(FixedBases(modulus, xs[3:8]).products(digits)).tobytes(),
            ]
        )
    assert results[0] == results[1]


PRODUCT = (7, [2, 3], np.array([0, 1], np.uint32), np.array([0, 2], np.int64))


@pytest.mark.process
def test_a_lost_worker_process_is_reported_and_replaced():
    assert run_in_processes(modular_gmpy2.gmp_segment_products, [PRODUCT] * 2, 2) == [[6]] * 2
    with pytest.raises(BrokenExecutor, match="twice"):
        run_in_processes(os._exit, [(1,)], 2)
    assert run_in_processes(modular_gmpy2.gmp_segment_products, [PRODUCT], 2) == [[6]]


@pytest.mark.process
def test_threads_share_worker_processes():
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: run_in_processes(os.getpid, [()] * 4, 2), range(4))
        assert len({worker for workers in found for worker in workers}) <= 2


def slowly(seconds, value):
    time.sleep(seconds)
    return os.getpid(), value


@pytest.mark.process
def test_threads_do_not_suffer_from_a_lost_worker():
    def work(k):
        return [value for _, value in run_in_processes(slowly, [(0.01, k)] * 40, 2)]

    workers = {worker for worker, _ in run_in_processes(slowly, [(0.05, 0)] * 4, 2)}
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(work, k) for k in range(2)]
        time.sleep(0.1)
        assert not any(each.done() for each in found)
        os.kill(workers.pop(), signal.SIGKILL)
        assert [each.result(200) for each in found] == [[0] * 40, [1] * 40]


@pytest.mark.process
def test_a_worker_keeps_its_place():
    first, second = run_in_processes(os.getpid, [()] * 2, 2)
    assert run_in_processes(os.getpid, [()] * 5, 2) == [first, second, first, second, first]


@pytest.mark.process
def test_a_forked_process_has_workers_of_its_own():
    script = (
        "import os, sys\n"
        "from hedgerow.crypto.arithmetic.worker_processes import run_in_processes\n"
        "ours = run_in_processes(os.getpid, [()], 1)\n"
        "child = os.fork()\n"
        "theirs = run_in_processes(os.getpid, [()], 1)\n"
        "if not child:\n"
        "    sys.exit(theirs == ours)\n"
        "assert theirs == ours\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=200).returncode == 0


@pytest.mark.process
def test_what_a_worker_raises_is_raised_here():
    with pytest.raises(OverflowError, match="too big"):
        run_in_processes(modular.ints_to_bytes, [([300], 1)], 2)
    with pytest.raises(InvalidPoint):
        run_in_processes(curve25519.ristretto_decode, [(b"\xff" * 32,)], 2)
    assert run_in_processes(modular.ints_to_bytes, [([300], 2)], 2)[0].tolist() == [[44, 1]]


class Undumpable(Exception):
    def __init__(self, one, other):
        super().__init__(one + other)


def undumpable(error):
    if error:
        raise Undumpable("a", "b")
    return lambda: None


@pytest.mark.process
@pytest.mark.parametrize("error", [True, False])
def test_what_cannot_be_pickled_is_named_and_costs_no_worker(error):
    worker = run_in_processes(os.getpid, [()], 2)
    named = (RuntimeError, r"Undumpable\('ab'\)") if error else (Exception, "pickle")
    with pytest.raises(named[0], match=named[1]):
        run_in_processes(undumpable, [(error,)], 2)
    assert run_in_processes(os.getpid, [()], 2) == worker


@pytest.mark.process
def test_an_interrupted_job_leaves_no_answer_to_the_next():
    script = (
        "import operator, signal, time\n"
        "from hedgerow.crypto.arithmetic.worker_processes import run_in_processes\n"
        "assert run_in_processes(operator.add, [(1, 1)], 2) == [2]\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.2)\n"
        "try:\n"
        "    run_in_processes(time.sleep, [(1000,)], 2)\n"
        "except KeyboardInterrupt:\n"
        "    assert run_in_processes(operator.add, [(1, 2)], 2) == [3]\n"
        "    raise SystemExit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=200).returncode == 7


@pytest.mark.process
def test_a_worker_that_cannot_start_says_why_and_one_starts_later():
    script = (
        "import operator, pathlib, sys\n"
        "from hedgerow.crypto.arithmetic.worker_processes import run_in_processes\n"
        "sys.path.append(pathlib.Path('no string'))\n"
        "real, sys.executable = sys.executable, '/no/interpreter'\n"
        "try:\n"
        "    run_in_processes(operator.add, [(1, 1)], 2)\n"
        "except FileNotFoundError:\n"
        "    sys.executable = real\n"
        "    sys.exit(run_in_processes(operator.add, [(3, 4)], 2)[0])\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=200).returncode == 7


@pytest.mark.process
@pytest.mark.parametrize("busy_seconds", [0, 0.3, 1000])
def test_workers_end_silently_with_a_parent_that_is_killed(busy_seconds, tmp_path):
    script = (
        "import os, time\n"
        "from hedgerow.crypto.arithmetic.worker_processes import run_in_processes\n"
        "print(run_in_processes(os.getpid, [()], 1)[0], flush=True)\n"
        f"run_in_processes(time.sleep, [({busy_seconds},)], 1)\n"
        "input()\n"
    )
    said = tmp_path / "stderr"
    with (
        said.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        ) as parent,
    ):
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.1)  # so that the worker has its job
        parent.kill()
        worker.wait(200)
    assert not said.read_bytes()


def test_residues_of_another_kernel_or_modulus_are_refused(engine):
    small, large = engine.modulus(odd_number(512)), engine.modulus(odd_number(2048))
    if engine.kernel != "gmpy2":
        with pytest.raises(ValueError, match="another modulus"):
            large.multiply(small.ones(2), small.ones(2))
    with pytest.raises(ValueError, match="another modulus or kernel"):
        small.multiply(np.zeros((2, 3), np.float64), small.ones(2))


@pytest.mark.parametrize("value", [0, 1, 4, 2**512])
def test_an_even_or_trivial_modulus_is_refused(engine, value):
    with pytest.raises(ValueError, match="odd modulus"):
        engine.modulus(value)


def test_an_unknown_kernel_or_no_worker_is_refused():
    with pytest.raises(ValueError, match="does not run here"):
        Engine("avx9", workers=1)
    with pytest.raises(ValueError, match="at least one worker"):
        Engine("gmpy2", workers=0)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != "gmpy2"])
class TestTheCKernelsAreGivenSoundArguments:
    """They check nothing: lengths and indices are checked before any memory is touched."""

    @pytest.fixture(autouse=True)
    def _modulus(self, kernel):
        self.modulus = Engine(kernel, workers=1).modulus(odd_number(512))
        self.a = self.modulus.from_ints(range(4))

    def test_terms_of_other_numbers(self):
        for operation in (self.modulus.multiply, self.modulus.add):
            with pytest.raises(ValueError, match="expected 4 residues"):
                operation(self.a, self.a[:3])

    def test_index_or_start_out_of_range(self):
        index = np.array([0, 4], np.uint32)
        for start in ([0, 2], [0, 3], [-1, 1], [1, 0]):
            with pytest.raises(ValueError, match=r"range|rise"):
                self.modulus.segment_products(self.a, index, np.array(start, np.int64))
        with pytest.raises(ValueError, match="rise"):
            self.modulus.segment_products(self.a, index % 4, np.array([0, 1, 3], np.int64))
        with pytest.raises(ValueError, match="range"):
            self.modulus.segment_products(self.a[:0], index[:1], np.array([0, 1], np.int64))

    def test_an_exponent_below_zero(self):
        with pytest.raises(ValueError, match="exponent"):
            self.modulus.power(self.a, -1)

    def test_digits_of_another_table(self):
        bases = FixedBases(self.modulus, [2, 3])
        with pytest.raises(ValueError, match="256 residues a row"):
            self.modulus.fixed_base_products(bases, np.zeros((1, 3), np.uint8))

    def test_slots_that_do_not_divide(self):
        with pytest.raises(ValueError, match="slots"):
            self.modulus.horner(self.a[:3], 2, 5)

    def test_words_out_of_order_or_of_another_width(self):
        with pytest.raises(ValueError, match="C order"):
            self.modulus._call("add", self.a[::2], self.a, self.a, 2)
        with pytest.raises(ValueError, match="another modulus or kernel"):
            self.modulus.multiply(self.a[:, :-1], self.a)

    def test_a_modulus_too_large(self, kernel):
        with pytest.raises(ValueError, match="no kernel"):
            Engine(kernel, workers=1).modulus((1 << 16000) + 1)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["powers", "products", "points"])
@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel != "gmpy2"])
def test_c_kernels_let_other_threads_run(kernel, what):
    """One call into C, long enough to notice; the interpreter works on meanwhile."""
    modulus = Engine(kernel, 1).modulus((1 << 4096) - 1)
    rows = modulus.from_ints(range(2, 18))
    index = np.zeros(40_000, np.uint32)
    points = bytes([9] + [0] * 31) * 2_000
    curve = Engine(kernel, 1).curve()
    work = {
        "powers": lambda: modulus.power(rows, (1 << 4000) - 1),
        "products": lambda: modulus.segment_products(rows, index, np.array([0, len(index)])),
        "points": lambda: curve.multiply(points, bytes(range(32))),
    }[what]
    most = 0
    while most <= 20:  # a busy machine may have no core for this thread meanwhile
        thread = threading.Thread(target=work)
        thread.start()
        turns = 0
        while thread.is_alive():
            turns += 1
            time.sleep(0)
        most = max(most, turns)
