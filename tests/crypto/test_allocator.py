"""Memory that was freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hedgerow.crypto.allocator import keep_freed_memory, return_freed_memory

PROGRAM = """
import threading
import psutil
from hedgerow.crypto.allocator import return_freed_memory
assert return_freed_memory()
kept = []

def work(k):
    # A small block above large ones, so that a heap cannot shrink below it.
    blocks = [bytes(size) for size in range(2_000_000 + k, 9_000_000, 1_000_000)]
    kept.append(bytes(600) + bytes(k))
    del blocks

used = lambda: psutil.Process().memory_full_info().uss
work(0)
before = used()
for _ in range(4):
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(used() - before)
"""


def printed(program: str) -> int:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.process
def test_large_blocks_of_several_threads_are_given_back() -> None:
    assert printed(PROGRAM) < 2_000_000


FAULTS = """
import resource
import threading
from hedgerow.crypto.allocator import keep_freed_memory, return_freed_memory
assert {tuning}()

def work():
    for size in (200_000, 900_000, 3_000_000, 14_000_000) * 5:
        block = bytearray(size)
        block[::4096] = b"x" * len(block[::4096])

faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(2):
    before = faults()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(faults() - before)
"""


@pytest.mark.process
def test_blocks_that_are_kept_cost_no_page_faults_when_they_are_taken_again() -> None:
    kept, returned = (
        printed(FAULTS.format(tuning=tuning))
        for tuning in ("keep_freed_memory", "return_freed_memory")
    )
    assert kept < 500 < returned


def test_a_process_can_be_told_twice() -> None:
    assert return_freed_memory() == return_freed_memory()
    assert keep_freed_memory() == return_freed_memory()
