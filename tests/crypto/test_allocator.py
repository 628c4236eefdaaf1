"""Memory that was freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

from crypto.allocator import return_freed_memory

PROGRAM = """
import threading
import psutil
from crypto.allocator import return_freed_memory
if {tuned}:
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


def growth(tuned: bool) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(tuned=tuned)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_large_blocks_of_several_threads_are_given_back() -> None:
    assert growth(tuned=True) < 2_000_000


def test_a_process_can_be_told_twice() -> None:
    assert return_freed_memory() == return_freed_memory()
