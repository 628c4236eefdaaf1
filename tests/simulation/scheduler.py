"""Time, threads, randomness and processes of a simulation, in place of Python's own.

:func:`install` has to come before any import of the product: modules that bind ``time.time`` or
``threading.Lock`` when they are imported get the simulated ones. A simulated thread is a greenlet;
one greenlet, the hub, chooses by a seeded generator which of those that can run is next. When none
can, time goes on to the next timer. Where there is none either, the run hangs, and is found to.
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from greenlet import getcurrent, greenlet

EPOCH = 1_795_910_400.0
"""Seconds since 1970 at which each simulation begins: 2026-11-29."""
SWITCH_SHARE = 0.03
"""Share of the points where a thread may be interrupted at which it is."""

TRUE = {
    "time.time": time.time,
    "time.monotonic": time.monotonic,
    "time.perf_counter": time.perf_counter,
    "time.sleep": time.sleep,
    "time.time_ns": time.time_ns,
    "time.monotonic_ns": time.monotonic_ns,
    "time.perf_counter_ns": time.perf_counter_ns,
    "os.urandom": os.urandom,
    "_thread.allocate_lock": _thread.allocate_lock,
    "_thread.start_new_thread": _thread.start_new_thread,
}
"""What a simulation may not use, by its name."""


_idents = itertools.count(1 << 20)


class Stuck(Exception):
    """Nothing can run any more, and no timer is set."""


class Process:
    """A simulated process: its threads, and what the system holds for it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        world.pids += 1
        self.pid = world.pids
        self.alive, self.began = True, world.now
        self.ended: list[Callable[[], None]] = []
        """Called when it is killed, or ends."""
        self.armed: int | None = None
        """How many more durable calls it makes before it is killed."""
        self.times = 0
        """As many as :attr:`armed` at first."""
        self.armed_at = ""
        """Calls of files with this in their path are counted."""
        self.again = False
        """Whether it is started again after that kill, and killed at the same calls."""
        self.power = False
        """Whether the machine loses power with that kill."""
        self.skew = 0.0
        """Seconds by which its time of day is ahead."""


class Thread:
    """A simulated thread."""

    def __init__(self, world: World, process: Process | None, work: Callable[[], None]) -> None:
        self.world, self.process = world, process
        self.ident = next(_idents)
        self.sentinel: Any = None
        self.ready = self.over = False
        self.woken: Any = None
        self._work = work
        self.greenlet = greenlet(self._run, world.hub)

    @property
    def dead(self) -> bool:
        """Whether it never runs again."""
        return self.over or (self.process is not None and not self.process.alive)

    def _run(self) -> None:
        try:
            self._work()
        except Exception:
            self.world.defects.append(f"a thread ended: {traceback.format_exc()}")
        finally:
            self.over = True
            self.world.threads.discard(self)
            if self.sentinel is not None:
                self.sentinel.release()


class World:
    """One simulation."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"schedule {seed}")
        self.entropy = random.Random(f"entropy {seed}")
        self.hub = getcurrent()
        self.now = 0.0
        self.pids = 4_000_000
        self.defects: list[str] = []
        self.threads: set[Thread] = set()
        """Those of killed processes too: to free them would run their cleaning up."""
        self.current: Thread | None = None
        """The thread that runs, None in the hub."""
        self.n_switches = 0
        self._ready: list[Thread] = []
        self._timers: list[tuple[float, int, Callable[[], None] | None]] = []
        self._numbers = 0

    @property
    def process(self) -> Process | None:
        """The process that runs, None in the hub."""
        thread = self.current
        return None if thread is None else thread.process

    def spawn(self, process: Process | None, work: Callable[[], None]) -> Thread:
        """Start a thread."""
        thread = Thread(self, process, work)
        self.threads.add(thread)
        self.wake(thread)
        return thread

    def wake(self, thread: Thread, why: Any = None) -> None:
        """Let a thread that is parked go on."""
        if not thread.ready and not thread.dead:
            thread.ready, thread.woken = True, why
            self._ready.append(thread)

    def at(self, when: float, do: Callable[[], None]) -> list[Any]:
        """Call ``do`` in the hub at a time; the handle is for :meth:`cancel`."""
        self._numbers += 1
        handle = [when, self._numbers, do]
        heapq.heappush(self._timers, handle)  # type: ignore[misc, arg-type]
        return handle

    def after(self, seconds: float, do: Callable[[], None]) -> list[Any]:
        """Call ``do`` in the hub after some time."""
        return self.at(self.now + max(seconds, 0.0), do)

    def cancel(self, handle: list[Any]) -> None:
        """Forget a timer."""
        handle[2] = None

    def park(self, seconds: float | None = None) -> Any:
        """Let others run until this thread is woken, or some time is over; return why."""
        thread = self.current
        assert thread is not None, "the hub cannot wait"
        timer = None
        if seconds is not None:
            timer = self.after(seconds, lambda: self.wake(thread, "time"))
        self.hub.switch()
        if timer is not None:
            self.cancel(timer)
        return thread.woken

    def point(self) -> None:
        """Let others run here now and then."""
        if self.current is not None and self.random.random() < SWITCH_SHARE:
            self.wake(self.current)
            self.park()

    def kill(self, process: Process) -> None:
        """End a process at once: none of its threads runs again."""
        if not process.alive:
            return
        process.alive, process.armed = False, None
        self._ready = [thread for thread in self._ready if thread.process is not process]
        for end in process.ended:
            end()

    def run(self, until: Callable[[], bool], most: float) -> bool:
        """Run threads and timers until a condition holds, or a time is reached.

        Returns
        -------
        bool
            Whether the condition holds.

        Raises
        ------
        Stuck
            Everything waits, for ever.
        """
        assert getcurrent() is self.hub
        while not until():
            if self._ready:
                ready = self._ready
                k = self.random.randrange(len(ready)) if len(ready) > 1 else 0
                ready[k], ready[-1] = ready[-1], ready[k]
                thread = ready.pop()
                thread.ready = False
                if thread.dead:
                    continue
                self.n_switches += 1
                self.current = thread
                thread.greenlet.switch()
                self.current = None
                continue
            while self._timers and self._timers[0][2] is None:
                heapq.heappop(self._timers)
            if not self._timers:
                raise Stuck(f"all wait for ever, {self.now:.3f} s after the start")
            if self._timers[0][0] > most:
                self.now = max(self.now, most)
                return False
            when, _, do = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            assert do is not None
            do()
        return True


_world: World | None = None


def world() -> World:
    """Return the running simulation."""
    assert _world is not None, "no simulation runs"
    return _world


@contextmanager
def simulating(seed: int) -> Iterator[World]:
    """Run a simulation in this block."""
    global _world
    _world = World(seed)
    random.seed(f"module {seed}")
    try:
        yield _world
    finally:
        _world.hub = getcurrent()


class Lock:
    """In place of ``threading.Lock``."""

    def __init__(self) -> None:
        self._held = False
        self._owner: Thread | None = None
        self._waiters: list[Thread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if _world is None or (thread := _world.current) is None:
            if self._held and not self._abandoned():
                assert not blocking, "the hub cannot wait for a lock"
                return False
            self._held, self._owner = True, None
            return True
        _world.point()
        end = None if timeout is None or timeout < 0 else _world.now + timeout
        while self._held and not self._abandoned():
            left = None if end is None else end - _world.now
            if not blocking or (left is not None and left <= 0):
                return False
            self._waiters.append(thread)
            try:
                _world.park(left)
            finally:
                if thread in self._waiters:
                    self._waiters.remove(thread)
        self._held, self._owner = True, thread
        return True

    def _abandoned(self) -> bool:
        # Of a killed process: what several processes share in this interpreter.
        return (
            self._owner is not None
            and self._owner.process is not None
            and (not self._owner.process.alive)
        )

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held, self._owner = False, None
        if self._waiters:
            world().wake(self._waiters.pop(0))

    def locked(self) -> bool:
        return self._held

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """In place of ``threading.RLock``."""

    def __init__(self) -> None:
        self._lock, self._who, self._count = Lock(), 0, 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = _ident()
        if self._who == me:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._who, self._count = me, 1
        return True

    def release(self) -> None:
        if self._who != _ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._who = 0
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._who == _ident()

    def _release_save(self) -> tuple[int, int]:
        saved = self._count, self._who
        self._count = self._who = 0
        self._lock.release()
        return saved

    def _acquire_restore(self, saved: tuple[int, int]) -> None:
        self._lock.acquire()
        self._count, self._who = saved

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


_true_ident, true_pid = _thread.get_ident, os.getpid


def _ident() -> int:
    thread = None if _world is None else _world.current
    return _true_ident() if thread is None else thread.ident


def _start_new_thread(work: Callable[..., Any], args: Any, options: Any = None) -> int:
    here = world()
    thread = here.spawn(here.process, lambda: work(*args, **(options or {})))
    return thread.ident


def _sentinel() -> Lock:
    lock = Lock()
    thread = world().current
    assert thread is not None
    thread.sentinel = lock
    return lock


def _monotonic() -> float:
    return 1000.0 + (0.0 if _world is None else _world.now)


def _time() -> float:
    if _world is None:
        return EPOCH
    process = _world.process
    return EPOCH + _world.now + (0.0 if process is None else process.skew)


def _sleep(seconds: float) -> None:
    world().park(max(seconds, 0.0))


def _urandom(n: int) -> bytes:
    return random.Random(0).randbytes(n) if _world is None else _world.entropy.randbytes(n)


def install() -> None:
    """Put the simulated parts in place of Python's own; to be called before other imports."""
    early = [name for name in sys.modules if name.startswith(("hedgerow", "grpc", "asyncio"))]
    assert not early, f"imported before the simulation was installed: {early[:4]}"
    # Tasks and futures in Python: those in C share what is the loop's between all greenlets.
    sys.modules["_asyncio"] = None  # type: ignore[assignment]
    import queue
    import threading
    from _threading_local import local

    _thread.allocate_lock = threading._allocate_lock = threading.Lock = Lock  # type: ignore
    _thread.start_new_thread = threading._start_new_thread = _start_new_thread  # type: ignore
    _thread.get_ident = threading.get_ident = threading.get_native_id = _ident
    threading._set_sentinel = _sentinel  # type: ignore[attr-defined]
    threading.RLock = threading._CRLock = _thread.RLock = RLock  # type: ignore
    threading.local = local  # type: ignore[misc]
    threading._active_limbo_lock = RLock()  # type: ignore[attr-defined]
    threading._shutdown_locks_lock = Lock()  # type: ignore[attr-defined]
    threading.excepthook = _failed
    threading._time = _monotonic  # type: ignore[attr-defined]
    queue.SimpleQueue = queue._PySimpleQueue  # type: ignore
    queue.time = _monotonic  # type: ignore[attr-defined]
    time.time, time.sleep = _time, _sleep
    time.monotonic = time.perf_counter = _monotonic
    time.time_ns = lambda: int(_time() * 1e9)
    time.monotonic_ns = time.perf_counter_ns = lambda: int(_monotonic() * 1e9)
    gmtime, localtime = time.gmtime, time.localtime
    time.gmtime = lambda seconds=None: gmtime(_time() if seconds is None else seconds)
    time.localtime = lambda seconds=None: localtime(_time() if seconds is None else seconds)
    os.urandom = random._urandom = _urandom  # type: ignore[attr-defined]
    seed = random.Random.seed

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed(self, int.from_bytes(os.urandom(32)) if a is None else a, version)

    random.Random.seed = seeded  # type: ignore[method-assign]
    os.getpid = lambda: true_pid() if _world is None or not _world.process else _world.process.pid
    import asyncio.futures

    numbers = itertools.count()

    def number(future: Any) -> int:
        # Sets of futures are gone through in the order of their hashes: not that of addresses.
        found = future.__dict__.get("_number")
        if found is None:
            found = future.__dict__["_number"] = next(numbers)
        return int(found)

    asyncio.futures.Future.__hash__ = number  # type: ignore[method-assign, assignment]
    _install_keys()


def _failed(args: Any) -> None:
    thread = getattr(args.thread, "name", "?")
    if _world is not None:
        text = "".join(
            traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        )
        _world.defects.append(f"thread {thread} ended: {text}")


def _install_keys() -> None:
    """Let what OpenSSL draws by itself be drawn from the seed."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, mlkem, x25519

    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    signature = ec.ECDSA.__init__

    def deterministic(self: Any, algorithm: Any, deterministic_signing: bool = True) -> None:
        signature(self, algorithm, deterministic_signing=deterministic_signing)

    def private_key(curve: Any, backend: Any = None) -> Any:
        return ec.derive_private_key(1 + int.from_bytes(os.urandom(40)) % (order - 1), curve)

    def without_kem(*_: Any) -> Any:
        # Its encapsulation draws in OpenSSL, from no seed.
        raise UnsupportedAlgorithm("not in a simulation")

    ec.ECDSA.__init__ = deterministic  # type: ignore[method-assign]
    ec.generate_private_key = private_key  # type: ignore[assignment]
    x25519.X25519PrivateKey.generate = classmethod(  # type: ignore[method-assign, assignment]
        lambda cls: cls.from_private_bytes(os.urandom(32))
    )
    mlkem.MLKEM768PrivateKey.from_seed_bytes = without_kem  # type: ignore
    for kind in (
        x509.CertificateBuilder,
        x509.CertificateSigningRequestBuilder,
        x509.CertificateRevocationListBuilder,
    ):
        _sign_deterministically(kind)


def _sign_deterministically(kind: Any) -> None:
    sign = kind.sign

    def signed(self: Any, key: Any, algorithm: Any, *rest: Any, **options: Any) -> Any:
        return sign(self, key, algorithm, *rest, **{"ecdsa_deterministic": True, **options})

    kind.sign = signed


def holders() -> list[str]:
    """Return what of the modules that are imported still has a true clock, lock, thread or draw."""
    true = {id(value): name for name, value in TRUE.items()}
    found = []
    for module in list(sys.modules.values()):
        if module is None or module.__name__.startswith(("tests.simulation", "posix")):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in true:
                found.append(f"{module.__name__}.{name} is {true[id(value)]}")
    return sorted(found)
