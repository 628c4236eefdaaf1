#!/bin/sh
# Build the native kernels with AddressSanitizer and UndefinedBehaviourSanitizer, and run their tests
# over that build: every function of the C libraries, on every path of this CPU. Any report fails the
# run. PYTHON names the interpreter, SANITIZE_SECONDS bounds the tests.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
compiler=${CC:-gcc}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

# Not optimised: with checks, the optimiser needs minutes for the vector code.
CC=$compiler "$python" hatch_build.py --out "$build" --cflags \
  "-O0 -g1 -UNDEBUG -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"

# The interpreter is not instrumented, so the runtime must be loaded first; its own leaks are not ours.
runtimes="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)"

# What Python alone computes needs no sanitiser.
LD_PRELOAD="$runtimes" PYTHONMALLOC=malloc \
  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 \
  UBSAN_OPTIONS=print_stacktrace=1 \
  timeout "${SANITIZE_SECONDS:-900}" "$python" -c '
import pathlib, sys, hedgerow.crypto.native
build = pathlib.Path(sys.argv[1])
hedgerow.crypto.native.__path__.insert(0, str(build / "crypto/native"))
from hedgerow.crypto.arithmetic import curve_native, modular_native
from hedgerow.crypto.native import kernels
for own in (curve_native, modular_native):
    assert own.LIBRARY.path.parents[2] == build, own.LIBRARY.path
kernels._ROOT = build
assert kernels.functions_of("boosting/tables"), build
import pytest
chosen = "not gmpy2 and not python and not worker_process and not other_threads"
sys.exit(pytest.main([*sys.argv[2:], "-q", "-p", "no:cacheprovider", "-k", chosen]))
' "$build" tests/crypto/test_modular.py tests/crypto/test_curve_native.py \
  tests/crypto/test_curve25519.py tests/crypto/test_elgamal.py tests/crypto/test_kernels.py
