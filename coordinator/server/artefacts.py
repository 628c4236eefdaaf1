"""Checkpoints and models of jobs as files: a local folder, or any file system fsspec knows.

A file is there whole or not at all. In a local folder it is written beside its place, made
durable and renamed; object stores give the same by themselves.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from hedgerow.boosting.errors import Unreachable
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.rpc.errors import Damaged

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

log = structlog.get_logger()

ANSWER_SECONDS = 10.0
"""How long a database, or a store of files elsewhere, may be silent before a call of it fails."""
BYTES_A_SECOND = 1 << 18
"""Slowest line to a store of files elsewhere."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MISSING = (FileNotFoundError,)
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


class StorageFailed(Unreachable):
    """State could not be written or read: disk full, folder not writable, server gone.

    What was stored is safe, and the store may work again: callers try again.
    """


def storage_failure(doing: str, error: Exception) -> StorageFailed:
    """Return the failure to ``doing`` (a phrase) in words an operator can act on."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return StorageFailed(f"no room left while {doing}: the disk is full or a quota is reached")
    reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return StorageFailed(f"{doing} failed: {reason}")


@contextmanager
def _failures(doing: str, *, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise what a store of files refuses as :class:`StorageFailed`."""
    try:
        yield
    except StorageFailed:
        raise
    except Exception as error:  # libraries of object stores have exceptions of their own
        if isinstance(error, but):
            raise
        raise storage_failure(doing, error) from error


def folders_of(url: str) -> tuple[Path, ...]:
    """Return the local folder of a store, if that is where its files are."""
    local = "://" not in url or url.startswith("file://")
    return (Path(url.removeprefix("file://")),) if local else ()


class Artefacts:
    """Files of jobs under one URL.

    Parameters
    ----------
    url : str
        A local folder, or an fsspec URL (``s3://bucket/prefix``, ``memory://name``).
    """

    def __init__(self, url: str) -> None:
        self._local: Path | None = None
        self._remote: AbstractFileSystem | None = None
        self.guard: Callable[[], AbstractContextManager[None]] = nullcontext
        """Held while a file is written or deleted."""
        if folders := folders_of(url):
            (self._local,) = folders
            self._root = str(self._local)
        else:
            import fsspec
            from fsspec.asyn import AsyncFileSystem

            try:
                kind = fsspec.get_filesystem_class(fsspec.utils.get_protocol(url))
                # Another coordinator may have written what a listing of ours does not have; file
                # systems that keep no listings may take this for an option of their connection.
                options: dict[str, Any] = {}
                if issubclass(kind, AsyncFileSystem):
                    options["use_listings_cache"] = False
                if url.startswith(("s3://", "s3a://")):  # we try again ourselves, and say why
                    config = {"connect_timeout": 5, "retries": {"total_max_attempts": 1}}
                    options["config_kwargs"] = config
                self._remote, root = fsspec.core.url_to_fs(url, **options)
            except (ImportError, TypeError, ValueError) as error:
                raise StorageFailed(f"artefact store {url}: {error}") from error
            self._root = str(root).rstrip("/")

    def prepare(self) -> None:
        """Make a local folder; raises StorageFailed where it cannot be used."""
        if self._local is not None:
            with _failures(f"opening the folder of artefacts {self._local}"):
                self._local.mkdir(parents=True, exist_ok=True, mode=0o700)
                if not os.access(self._local, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, "this user may not write there")

    def write(self, job_id: str, name: str, data: bytes) -> str:
        """Store a file, replacing one of the same name; return its SHA-256 in hex.

        Raises
        ------
        StorageFailed
            Other files, and an earlier one of this name, are as they were.
        """
        path = self._path(job_id, name)
        with _failures(f"writing {name} of job {job_id}"):
            if self._remote is None:
                write_atomically(Path(path), data, within=self.guard)
            else:
                with self.guard():
                    self._call("makedirs", path.rpartition("/")[0], exist_ok=True)
                    self._call("pipe_file", path, data, n_bytes=len(data))
        return hashlib.sha256(data).hexdigest()

    def read(self, job_id: str, name: str, digest: str = "") -> bytes:
        """Return a file's bytes.

        Parameters
        ----------
        digest : str
            What :meth:`write` returned; empty where it is not known.

        Raises
        ------
        StorageFailed
            There is no such file, or it cannot be read.
        Damaged
            It is not the file that was stored.
        """
        if digest and not self.exists(job_id, name):
            raise Damaged(f"{name} of job {job_id} is missing")
        data = self._read(job_id, name)
        if digest and hashlib.sha256(data).hexdigest() != digest:
            raise Damaged(f"{name} of job {job_id} is damaged: it is not the file that was stored")
        return data

    def _read(self, job_id: str, name: str) -> bytes:
        path = self._path(job_id, name)
        try:
            with _failures(f"reading {name} of job {job_id}", but=_MISSING):
                if self._remote is None:
                    return Path(path).read_bytes()
                size = self._call("info", path)["size"]
                return bytes(self._call("cat_file", path, n_bytes=size or 0))
        except FileNotFoundError:
            raise StorageFailed(f"job {job_id} has no file {name}") from None

    def exists(self, job_id: str, name: str) -> bool:
        """Whether the job has a file of this name."""
        path = self._path(job_id, name)
        try:
            with _failures(f"looking for {name} of job {job_id}", but=_MISSING):
                if self._remote is None:
                    return Path(path).is_file()
                # Not isfile: it says no of a store that does not answer.
                return bool(self._call("info", path)["type"] == "file")
        except FileNotFoundError:
            return False

    def list(self, job_id: str) -> tuple[str, ...]:
        """Return the names of a job's files, sorted; empty for an unknown job."""
        folder = self._path(job_id)
        with _failures(f"listing the files of job {job_id}"):
            if self._remote is None:
                found = [str(p) for p in Path(folder).rglob("*") if p.is_file()]
            else:
                found = [str(p) for p in self._call("find", folder)]
        names = (path[len(folder) :].lstrip("/") for path in found)
        return tuple(sorted(n for n in names if not n.rpartition("/")[2].startswith(".")))

    def jobs(self) -> frozenset[str]:
        """Return the jobs that have files."""
        try:
            with _failures("listing the jobs that have files", but=_MISSING):
                if self._remote is None:
                    return frozenset(p.name for p in Path(self._root).glob("*/"))
                found = self._call("ls", self._root, detail=False)
        except FileNotFoundError:
            return frozenset()
        return frozenset(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, job_id: str, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        path = self._path(job_id, name)
        doing = f"deleting {name} of job {job_id}"
        with self.guard(), suppress(FileNotFoundError), _failures(doing, but=_MISSING):
            if self._remote is None:
                Path(path).unlink(missing_ok=True)
            else:
                self._call("rm_file", path)

    def delete_all(self, job_id: str) -> None:
        """Remove all files of a job."""
        path = self._path(job_id)
        doing = f"deleting the files of job {job_id}"
        with self.guard(), suppress(FileNotFoundError), _failures(doing, but=_MISSING):
            if self._remote is None:
                shutil.rmtree(path)
            else:
                self._call("rm", path, recursive=True)

    def write_checked(self, job_id: str, name: str, data: bytes) -> None:
        """Store a file with its digest."""
        self.write(job_id, name, hashlib.sha256(data).digest() + data)

    def read_checked(self, job_id: str, name: str) -> bytes:
        """Return a file of :meth:`write_checked`; raises Damaged too."""
        found = self.read(job_id, name)
        if hashlib.sha256(found[32:]).digest() != found[:32]:
            raise Damaged(f"{name} of job {job_id} is damaged")
        return found[32:]

    def write_checkpoint(self, job_id: str, round: int, data: bytes) -> None:
        """Store the checkpoint of a finished round."""
        self.write_checked(job_id, _checkpoint(round), data)

    def read_checkpoint(self, job_id: str, round: int) -> bytes:
        """Return the checkpoint of a round."""
        return self.read_checked(job_id, _checkpoint(round))

    def rounds_done(self, job_id: str) -> int:
        """Return how many rounds need not be repeated; what a damaged checkpoint has must."""
        for round in reversed(self.checkpoints(job_id)):
            try:
                self.read_checkpoint(job_id, round)
                return round + 1
            except Damaged as error:
                log.warning("round is repeated", job=job_id, round=round, why=str(error))
        return 0

    def checkpoints(self, job_id: str) -> tuple[int, ...]:
        """Return the rounds that have a checkpoint, rising."""
        found = (re.fullmatch(r"checkpoints/(\d+)", name) for name in self.list(job_id))
        return tuple(sorted(int(match[1]) for match in found if match))

    def prune_checkpoints(self, job_id: str, keep: Collection[int]) -> None:
        """Remove all checkpoints but those of the rounds in ``keep``."""
        for round in self.checkpoints(job_id):
            if round not in keep:
                self.delete(job_id, _checkpoint(round))

    def _call(self, name: str, *what: Any, n_bytes: int = 0, **options: Any) -> Any:
        """Call the file system elsewhere; where it can be interrupted, it does not hang."""
        from fsspec.asyn import AsyncFileSystem, sync

        if not isinstance(self._remote, AsyncFileSystem):
            return getattr(self._remote, name)(*what, **options)
        seconds = ANSWER_SECONDS + n_bytes / BYTES_A_SECOND
        call = getattr(self._remote, f"_{name}")
        try:
            return sync(self._remote.loop, call, *what, timeout=seconds, **options)
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {seconds:.0f} s") from error

    def _path(self, job_id: str, name: str | None = None) -> str:
        parts = [job_id] + ([] if name is None else name.split("/"))
        if not all(_PART.fullmatch(part) for part in parts):
            raise StorageFailed("names of jobs and files are made of letters, digits and _.@-")
        return "/".join([self._root, *parts])


def _checkpoint(round: int) -> str:
    return f"checkpoints/{round:06d}"
