"""Compile the kernels ahead of time: ``python deploy/images/kernels.py FOLDER``.

It needs a C and a C++ compiler. ``kernel-types.txt`` beside this file has the types of arguments
that kernels are called with, a line each. ``--seen`` adds what numba has compiled beside the
sources of kernels that Python calls, which after ``make test`` is all that tests call.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import pickle
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc import locate
from typing import Any

from hedgerow.crypto import compiled

LIST = Path(__file__).with_name("kernel-types.txt")


def numba_types(words: Iterator[str]) -> list[Any]:
    """Return numba's types of what ``compiled.types_of`` wrote."""
    from numba.core import types

    found: list[Any] = []
    for word in words:
        if word == ")":
            break
        if word.endswith("("):
            kind = None if word == "tuple(" else locate(word[:-1])
            if kind is None and word != "tuple(":
                raise LookupError(f"{LIST.name}: there is no {word[:-1]}")
            found.append(types.BaseTuple.from_types(numba_types(words), kind))
            continue
        number, _, shape = word.removeprefix("const:").partition("[")
        of = types.boolean if number == "bool" else getattr(types, number)
        constant = word.startswith("const:")
        found.append(types.Array(of, int(shape[0]), shape[1], constant) if shape else of)
    return found


def words_of(kind: Any) -> str:
    """Return what ``compiled.types_of`` writes of one of numba's types."""
    from numba.core import types

    if isinstance(kind, types.BaseTuple):
        opening = compiled.opening_of(getattr(kind, "instance_class", tuple))
        return " ".join([opening, *map(words_of, kind), ")"])
    if isinstance(kind, types.Array):
        return f"{'' if kind.mutable else 'const:'}{kind.dtype}[{kind.ndim}{kind.layout}]"
    return str(kind)


def build(lines: list[str], folder: Path) -> None:
    """Write a library for each level of CPU, and the table of what is in them."""
    # Made into LLVM's language once, which each level optimises for itself.
    os.environ |= {"NUMBA_OPT": "0", "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    warnings.simplefilter("ignore")  # pycc is to go, once there is something for it
    import llvmlite.binding as llvm
    from numba import config, njit
    from numba.core.codegen import AOTCPUCodegen
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.typing import signature
    from numba.pycc import CC, compiler

    compiled._njit = lambda **options: njit(nogil=True, **options)
    make = compiler.compile_extra

    def without_lock(
        typing: Any, target: Any, function: Any, args: Any, result: Any, flags: Any, **options: Any
    ) -> Any:
        flags.release_gil = True
        return make(typing, target, function, args, result, flags, **options)

    compiler.compile_extra = without_lock
    entries = []
    for k, line in enumerate(lines):
        name, *words = line.split()
        types = tuple(numba_types(iter(words)))
        kernel = locate(name).compiled()
        kernel.compile(types)
        result = kernel.overloads[types].signature.return_type
        given = ", ".join(f"a{i}" for i in range(len(types)))
        # One that calls the kernel: it is compiled as it says, and may call itself.
        call = eval(f"lambda {given}: kernel({given})", {"kernel": kernel})  # noqa: S307
        entries.append(compiler.ExportEntry(f"k{k}", signature(result, *types), call))
    whole = compiler.ModuleCompiler(entries, compiled.MODULE, use_nrt=True)
    whole.external_init_function = f"pycc_init_{compiled.MODULE}"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, global_compiler_lock:
        code, part = Path(scratch, "kernels.bc"), Path(scratch, "kernels.o")
        whole.write_llvm_bitcode(str(code), wrap=True)
        os.environ["NUMBA_OPT"] = "3"
        config.reload_config()
        linker = CC(compiled.MODULE, source_module=compiled)
        others = linker._compile_mixins(scratch)
        chain = linker._toolchain
        for level in compiled.LEVELS[platform.machine()]:
            library = AOTCPUCodegen(compiled.MODULE, cpu_name=level).create_library(level)
            library.add_llvm_module(llvm.parse_bitcode(code.read_bytes()))
            library.finalize()
            part.write_bytes(library.emit_native_object())
            chain.link_shared(
                str(folder / f"{level}.so"),
                [str(part), *others],
                chain.get_python_libraries(),
                chain.get_python_library_dirs(),
                export_symbols=[],
                extra_ldflags=["-pthread", "-Wl,-s"],
            )
    made = {
        level: hashlib.sha256((folder / f"{level}.so").read_bytes()).hexdigest()
        for level in compiled.LEVELS[platform.machine()]
    }
    table = {"digest": compiled.digest(), "libraries": made, "kernels": lines}
    (folder / "kernels.json").write_text(json.dumps(table, indent=1))


def of_python() -> dict[str, Path]:
    """Return the kernels that others than kernels call, and their files."""
    root = Path(compiled.__file__).parents[1]
    paths = [path for room in compiled.ROOMS for path in (root / room).rglob("*.py")]
    trees = {path: ast.parse(path.read_text()) for path in paths}
    names = {path: set(_called(tree)) for path, tree in trees.items()}
    return {
        ".".join([*path.relative_to(root.parent).with_suffix("").parts, node.name]): path
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and _is_kernel(node)
        and any(node.name in names[one] for one in (paths if node.name[0] != "_" else [path]))
    }


def _is_kernel(node: ast.AST) -> bool:
    marks = getattr(node, "decorator_list", [])
    return any(ast.unparse(mark).startswith("compiled") for mark in marks)


def _called(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if not _is_kernel(child):
            if isinstance(child, ast.Name | ast.Attribute):
                yield getattr(child, "id", None) or child.attr
            yield from _called(child)


def seen() -> set[str]:
    """Return a line for all that numba has compiled of the kernels that Python calls."""
    found = set()
    for kernel, path in of_python().items():
        for index in path.parent.glob(f"__pycache__/{path.stem}.{kernel.split('.')[-1]}-*.nbi"):
            with index.open("rb") as file:
                _, (stamp, overloads) = pickle.load(file), pickle.load(file)  # noqa: S301
            fresh = stamp == hashlib.sha256(path.read_bytes()).digest()
            for types, *_ in overloads if fresh else ():
                line = " ".join([kernel, *map(words_of, types)])
                if "Literal" not in line:
                    found |= {line, line.replace("uint8[", "uint16[")}  # bins are of either width
    return found


def main() -> None:
    """Build, or renew the list."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--seen", action="store_true")
    parser.add_argument("--list", type=Path, default=LIST)
    given = parser.parse_args()
    lines = given.list.read_text().splitlines() if given.list.exists() else []
    if given.seen:
        given.list.write_text("\n".join(sorted({*lines, *seen()})) + "\n")
    else:
        build(lines, given.folder)


if __name__ == "__main__":
    sys.exit(main())
