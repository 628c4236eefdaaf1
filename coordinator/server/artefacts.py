"""Checkpoints and models of jobs as files: a local folder, or any file system fsspec knows.

A file is there whole or not at all. In a local folder it is written beside its place, made
durable and renamed; object stores give the same by themselves.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from hedgerow.boosting.errors import Unreachable
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.rpc.errors import Damaged

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

log = structlog.get_logger()

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
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
        if folders := folders_of(url):
            (self._local,) = folders
            self._root = str(self._local)
        else:
            import fsspec

            try:
                self._remote, root = fsspec.core.url_to_fs(url)
            except (ImportError, ValueError) as error:
                raise StorageFailed(f"artefact store {url}: {error}") from error
            self._root = str(root).rstrip("/")

    def write(self, job_id: str, name: str, data: bytes) -> str:
        """Store a file, replacing one of the same name; return its SHA-256 in hex.

        Raises
        ------
        StorageFailed
            Other files, and an earlier one of this name, are as they were.
        """
        path = self._path(job_id, name)
        try:
            if self._remote is None:
                write_atomically(Path(path), data)
            else:
                self._remote.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._remote.pipe_file(path, data)
        except OSError as error:
            raise storage_failure(f"writing {name} of job {job_id}", error) from error
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
            if self._remote is None:
                return Path(path).read_bytes()
            return bytes(self._remote.cat_file(path))
        except FileNotFoundError:
            raise StorageFailed(f"job {job_id} has no file {name}") from None
        except OSError as error:
            raise storage_failure(f"reading {name} of job {job_id}", error) from error

    def exists(self, job_id: str, name: str) -> bool:
        """Whether the job has a file of this name."""
        path = self._path(job_id, name)
        try:
            if self._remote is None:
                return Path(path).is_file()
            return bool(self._remote.isfile(path))
        except OSError as error:
            raise storage_failure(f"looking for {name} of job {job_id}", error) from error

    def list(self, job_id: str) -> tuple[str, ...]:
        """Return the names of a job's files, sorted; empty for an unknown job."""
        folder = self._path(job_id)
        try:
            if self._remote is None:
                found = [str(p) for p in Path(folder).rglob("*") if p.is_file()]
            else:
                self._remote.invalidate_cache()
                found = [str(p) for p in self._remote.find(folder)]
        except OSError as error:
            raise storage_failure(f"listing the files of job {job_id}", error) from error
        names = (path[len(folder) :].lstrip("/") for path in found)
        return tuple(sorted(n for n in names if not n.rpartition("/")[2].startswith(".")))

    def jobs(self) -> frozenset[str]:
        """Return the jobs that have files."""
        try:
            if self._remote is None:
                return frozenset(p.name for p in Path(self._root).glob("*/"))
            found = self._remote.ls(self._root, detail=False)
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise storage_failure("listing the jobs that have files", error) from error
        return frozenset(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, job_id: str, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        path = self._path(job_id, name)
        try:
            if self._remote is None:
                Path(path).unlink(missing_ok=True)
            else:
                with contextlib.suppress(FileNotFoundError):
                    self._remote.rm_file(path)
        except OSError as error:
            raise storage_failure(f"deleting {name} of job {job_id}", error) from error

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

    def _path(self, job_id: str, name: str | None = None) -> str:
        parts = [job_id] + ([] if name is None else name.split("/"))
        if not all(_PART.fullmatch(part) for part in parts):
            raise StorageFailed("names of jobs and files are made of letters, digits and _.@-")
        return "/".join([self._root, *parts])


class JobJournal:
    """What a strategy's half keeps of a job inside its rounds.

    See :class:`hedgerow.boosting.ports.Journal`.

    Parameters
    ----------
    artefacts : Artefacts
    job_id : str
    """

    def __init__(self, artefacts: Artefacts, job_id: str) -> None:
        self._artefacts = artefacts
        self._job_id = job_id

    def remember(self, key: str, value: bytes) -> None:
        """Store a record durably."""
        self._artefacts.write_checked(self._job_id, f"journal/{key}", value)

    def recall(self, key: str) -> bytes | None:
        """Return a record, or None."""
        if not self._artefacts.exists(self._job_id, f"journal/{key}"):
            return None
        return self._artefacts.read_checked(self._job_id, f"journal/{key}")


def _checkpoint(round: int) -> str:
    return f"checkpoints/{round:06d}"
