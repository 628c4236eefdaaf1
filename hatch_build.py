"""Build the optional native kernels of ``crypto/native``.

Every ``crypto/native/NAME.c`` becomes the extension module ``hedgerow.crypto.native._NAME``: stable
ABI, so that one file serves every Python from 3.11 on. Headers beside it are shared. hatchling runs
the hook for wheels and editable installs; ``python hatch_build.py`` builds in place without pip.

The kernels are an optimisation with a pure-Python twin, so a machine without a compiler installs
all the same: the hook says so and continues. ``HEDGEROW_NATIVE`` changes that: ``0`` does not try,
``require`` makes a failed build an error (container images, CI).
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a script, outside of a build environment
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "hedgerow" / "crypto" / "native"  # a source distribution has no /crypto
SUFFIX = ".abi3.so"
# -fno-strict-aliasing: gcc 12 miscompiles a vector kernel at -O3 without it.
# Instruction sets beyond the baseline are per function (target attributes), never per build:
# the module must load, and choose its path, on any CPU of the architecture.
CFLAGS = [
    "-std=c11",
    "-O3",
    "-fPIC",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-fstack-protector-strong",
    "-Wall",
    "-Wextra",
    "-Wno-missing-field-initializers",
    "-DNDEBUG",
    "-DPy_LIMITED_API=0x030B0000",
]


class NativeBuildError(RuntimeError):
    """A kernel could not be compiled; ``built`` are the modules that could."""

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


def sources() -> list[Path]:
    """Return the C files that become extension modules."""
    return sorted(SOURCES.glob("*.c"))


def compile_extension(source: Path, folder: Path, extra_flags: tuple[str, ...]) -> Path:
    """Compile one C file into ``folder`` and return the extension module's path."""
    command = compiler()
    if command is None:
        raise NativeBuildError("no C compiler found (looked for $CC, cc, gcc, clang)")
    target = folder / f"_{source.stem}{SUFFIX}"
    link = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    include = sysconfig.get_paths()["include"]
    # A process that has the old file mapped must keep it: write beside it, then replace.
    with tempfile.NamedTemporaryFile(dir=folder, prefix=target.name, delete=False) as handle:
        partial = Path(handle.name)
    flags = [*CFLAGS, *extra_flags, f"-I{include}", "-shared", *link]
    try:
        done = subprocess.run(
            [*command, *flags, str(source), "-o", str(partial)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NativeBuildError(f"{source.name} did not compile:\n{done.stderr}")
        if done.stderr.strip():
            print(done.stderr, file=sys.stderr)
        partial.chmod(0o755)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def build(
    folder: Path, *, force: bool = False, only: str | None = None, extra_flags: tuple[str, ...] = ()
) -> list[Path]:
    """Compile every source whose module in ``folder`` is missing or older than its inputs.

    One source that fails does not keep the others from being built; the error comes last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    newest_header = max(
        (path.stat().st_mtime for path in [*SOURCES.glob("*.h"), Path(__file__)]), default=0.0
    )
    modules, failures = [], []
    for source in sources():
        if only is not None and source.stem != only:
            continue
        target = folder / f"_{source.stem}{SUFFIX}"
        newest = max(source.stat().st_mtime, newest_header)
        if force or not target.exists() or target.stat().st_mtime < newest:
            try:
                target = compile_extension(source, folder, extra_flags)
            except NativeBuildError as error:
                failures.append(str(error))
                continue
        modules.append(target)
    if failures:
        raise NativeBuildError("\n".join(failures), modules)
    return modules


class CustomBuildHook(BuildHookInterface):
    """hatchling's hook: compile, and add what compiled to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("HEDGEROW_NATIVE", "")
        if wanted == "0" or not sources():
            return
        editable = version == "editable"
        self._scratch = None if editable else tempfile.mkdtemp(prefix="hedgerow-native-")
        try:
            modules = build(SOURCES if self._scratch is None else Path(self._scratch))
        except NativeBuildError as error:
            if wanted == "require":
                raise
            self.app.display_warning(
                f"hedgerow: installing without all native kernels: {error}\n"
                "hedgerow: everything works through gmpy2, several times slower. "
                "Install a C compiler and reinstall to get the kernels."
            )
            modules = error.built
            if not modules:
                return
        if not editable:
            for module in modules:
                build_data["force_include"][str(module)] = f"hedgerow/crypto/native/{module.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{self._platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        scratch = getattr(self, "_scratch", None)
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)

    @staticmethod
    def _platform() -> str:
        from packaging.tags import sys_tags

        # A module built here is good for this machine's libc, not for a manylinux promise.
        portable = ("manylinux", "musllinux")
        return next(t.platform for t in sys_tags() if not t.platform.startswith(portable))


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the native kernels in place.")
    parser.add_argument("--force", action="store_true", help="compile even what is up to date")
    parser.add_argument("--only", metavar="NAME", help="only crypto/native/NAME.c")
    parser.add_argument("--out", type=Path, default=SOURCES, help="folder of the modules")
    parser.add_argument("--cflags", default="", help="further compiler flags, as one string")
    arguments = parser.parse_args()
    try:
        modules = build(
            arguments.out,
            force=arguments.force or bool(arguments.cflags),
            only=arguments.only,
            extra_flags=tuple(shlex.split(arguments.cflags)),
        )
    except NativeBuildError as error:
        print(error, file=sys.stderr)
        return 1
    for module in modules:
        print(module)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
