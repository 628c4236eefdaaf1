"""Build the optional native kernels of ``crypto/native`` and ``boosting/native``.

Every ``NAME.c`` there becomes the library ``NAME.so`` beside it, of plain functions that know
nothing of Python, so that one file serves every version. Headers beside it are shared. What a
source exports by ``crypto/native/common.h`` is listed in ``NAME.decl``, for
``crypto.native.kernels``, below a digest of the sources: a checkout refuses a library of others.
hatchling runs the hook for wheels and editable installs; ``python hatch_build.py`` builds in place
without pip.

The kernels are an optimisation with a pure-Python twin, so a machine without a compiler installs
all the same: the hook says so and continues. ``HEDGEROW_NATIVE`` changes that: ``0`` does not try,
``require`` makes a failed build an error (container images, CI).
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a script, outside of a build environment
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "hedgerow"  # a source distribution has no /crypto
SUFFIX = ".so"
# -fno-strict-aliasing: gcc 12 miscompiles a vector kernel at -O3 without it.
# Instruction sets beyond the baseline are per function (target attributes), never per build:
# the library must load, and choose its path, on any CPU of the architecture.
CFLAGS = [
    "-std=c11",
    "-O3",
    "-fPIC",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-trapping-math",  # else no choice between floats is a vector instruction
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-fstack-protector-strong",
    "-Wall",
    "-Wextra",
    "-Wno-missing-field-initializers",
    "-DNDEBUG",
]


class NativeBuildError(RuntimeError):
    """A kernel could not be compiled; ``built`` are the libraries that could."""

    def __init__(self, said: str, built: list[Path] | None = None) -> None:
        super().__init__(said)
        self.built = built or []


def compiler() -> list[str] | None:
    """Return the compiler's command line, from ``CC`` or the usual names, or None."""
    for command in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if command:
            words = shlex.split(command)
            if shutil.which(words[0]):
                return words
    return None


def _commit() -> str:
    """Return what is built, where that is a clone: its commit, with ``+`` for changes."""
    git = [
        "git",
        "-c",
        "safe.directory=*",
        "-C",
        str(ROOT),
        "describe",
        "--always",
        "--exclude=*",
        "--dirty=+",
    ]
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        return ""
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def sources() -> list[Path]:
    """Return the C files that become libraries."""
    return sorted(PACKAGE.glob("*/native/*.c"))


def _told(function: str, path: Path) -> Any:
    return runpy.run_path(str(PACKAGE / "crypto/native/sources.py"))[function](path)


def declared(command: list[str], source: Path) -> str:
    """Return what a library is of, and the functions exported by ``common.h``, if any."""
    whole = f"// {_told('digest_of', source)}\n"
    if '/common.h"' not in source.read_text() and '"common.h"' not in source.read_text():
        return whole
    done = subprocess.run(
        [*command, "-E", "-P", str(source)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NativeBuildError(f"{source.name} cannot be read:\n{done.stderr}")
    found = re.findall(
        r'__attribute__\(\(visibility\("default"\)\)\)\s*(\w+\s+\w+\([^)]*\))', done.stdout
    )
    lines = (" ".join(f"{one};".split()) for one in found)
    return whole + "".join(f"{line}\n" for line in lines)


def compile_extension(source: Path, folder: Path, extra_flags: tuple[str, ...]) -> Path:
    """Compile one C file into ``folder`` and return the library's path."""
    command = compiler()
    if command is None:
        raise NativeBuildError("no C compiler found (looked for $CC, cc, gcc, clang)")
    target = folder / f"{source.stem}{SUFFIX}"
    # A process that has the old file mapped must keep it: write beside it, then replace.
    # A build that is killed leaves these, which .gitignore names.
    with tempfile.NamedTemporaryFile(
        dir=folder, prefix=f".{source.stem}.", suffix=SUFFIX, delete=False
    ) as handle:
        partial = Path(handle.name)
    declarations = partial.with_suffix(".decl")
    flags = [*CFLAGS, *extra_flags, "-shared"]
    try:
        done = subprocess.run(
            [*command, *flags, str(source), "-lm", "-o", str(partial)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NativeBuildError(f"{source.name} did not compile:\n{done.stderr}")
        if done.stderr.strip():
            print(done.stderr, file=sys.stderr)
        declarations.write_text(declared(command, source))
        partial.chmod(0o755)
        partial.replace(target)
        declarations.replace(target.with_suffix(".decl"))  # last: it says that both are whole
    finally:
        partial.unlink(missing_ok=True)
        declarations.unlink(missing_ok=True)
    return target


def build(
    folder: Path | None,
    *,
    force: bool = False,
    only: str | None = None,
    extra_flags: tuple[str, ...] = (),
) -> list[Path]:
    """Compile every source whose library is missing or of other inputs.

    ``folder`` gets a folder for each package, ``PACKAGE/native``; None is the packages' own.

    One source that fails does not keep the others from being built; the error comes last.
    """
    libraries, failures = [], []
    for source in sources():
        if only is not None and source.stem != only:
            continue
        into = source.parent if folder is None else folder / source.parent.relative_to(PACKAGE)
        into.mkdir(parents=True, exist_ok=True)
        target = into / f"{source.stem}{SUFFIX}"
        if force or folder is not None or not _told("is_current", target):
            try:
                target = compile_extension(source, into, extra_flags)
            except NativeBuildError as error:
                failures.append(str(error))
                continue
        libraries.append(target)
    if failures:
        raise NativeBuildError("\n".join(failures), libraries)
    return libraries


def lost_links(package: Path) -> list[str]:
    """Return what of the package is a text that names a folder, where a link to it should be."""
    return [path.name for path in sorted(package.iterdir()) if path.is_file() and not path.suffix]


class CustomBuildHook(BuildHookInterface):
    """hatchling's hook: note the commit, compile, and add what compiled to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if lost := lost_links(ROOT / "hedgerow"):
            self.app.abort(
                f"hedgerow: {', '.join(lost)} in {ROOT / 'hedgerow'} should be symbolic links to "
                "folders and are files, so the package would hold no code; clone with "
                "`git clone -c core.symlinks=true`, or build from the source distribution."
            )
        commit = _commit()
        if commit and version != "editable":  # a clone is asked each time
            self._noted = Path(tempfile.mkdtemp(prefix="hedgerow-commit-"), "commit.txt")
            self._noted.write_text(commit + "\n")
            build_data["force_include"][str(self._noted)] = "hedgerow/commit.txt"
        if self.target_name == "sdist":
            return
        wanted = os.environ.get("HEDGEROW_NATIVE", "")
        if wanted == "0" or not sources():
            return
        editable = version == "editable"
        self._scratch = None if editable else tempfile.mkdtemp(prefix="hedgerow-native-")
        try:
            libraries = build(None if self._scratch is None else Path(self._scratch))
        except NativeBuildError as error:
            if wanted == "require":
                raise
            self.app.display_warning(
                f"hedgerow: installing without all native kernels: {error}\n"
                "hedgerow: everything works in Python, cryptography several times slower and "
                "training hundreds of times. "
                "Install a C compiler and reinstall to get the kernels."
            )
            libraries = error.built
            if not libraries:
                return
        if not editable:
            for library in libraries:
                for file in library.parent.glob(f"{library.stem}.*"):
                    place = file.relative_to(str(self._scratch))
                    build_data["force_include"][str(file)] = f"hedgerow/{place}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{self._platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if noted := getattr(self, "_noted", None):
            shutil.rmtree(noted.parent, ignore_errors=True)
        scratch = getattr(self, "_scratch", None)
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)

    @staticmethod
    def _platform() -> str:
        from packaging.tags import sys_tags

        # A library built here is good for this machine's libc, not for a manylinux promise.
        portable = ("manylinux", "musllinux")
        return next(t.platform for t in sys_tags() if not t.platform.startswith(portable))


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the native kernels in place.")
    parser.add_argument("--force", action="store_true", help="compile even what is up to date")
    parser.add_argument("--only", metavar="NAME", help="only NAME.c")
    parser.add_argument("--out", type=Path, help="folder of the libraries, PACKAGE/native in it")
    parser.add_argument("--cflags", default="", help="further compiler flags, as one string")
    arguments = parser.parse_args()
    try:
        libraries = build(
            arguments.out,
            force=arguments.force or bool(arguments.cflags),
            only=arguments.only,
            extra_flags=tuple(shlex.split(arguments.cflags)),
        )
    except NativeBuildError as error:
        print(error, file=sys.stderr)
        return 1
    for library in libraries:
        print(library)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
