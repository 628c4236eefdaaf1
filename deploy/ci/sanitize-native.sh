#!/bin/sh
# Build the native kernels with AddressSanitizer and UndefinedBehaviourSanitizer, and run their tests
# over that build. Bounded in time; any report fails the run. PYTHON names the interpreter.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
compiler=${CC:-gcc}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

CC=$compiler "$python" hatch_build.py --out "$build" --cflags \
  "-O1 -g -UNDEBUG -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"

# The interpreter is not instrumented, so the runtime must be loaded first; its own leaks are not ours.
runtimes="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)"
tests=$(ls tests/crypto/test_modular.py tests/crypto/test_paillier.py \
  tests/crypto/test_ciphertext_histogram.py tests/crypto/test_curve*.py tests/crypto/test_psi.py \
  tests/crypto/test_elgamal.py tests/crypto/test_bin_sums.py 2>/dev/null || true)

# shellcheck disable=SC2086 # lists of words on purpose
LD_PRELOAD="$runtimes" PYTHONMALLOC=malloc \
  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 \
  UBSAN_OPTIONS=print_stacktrace=1 \
  timeout "${SANITIZE_SECONDS:-480}" "$python" -c '
import sys, crypto.native
crypto.native.__path__.insert(0, sys.argv[1])
from crypto.native import _paillier
assert _paillier.__file__.startswith(sys.argv[1]), _paillier.__file__
import pytest
sys.exit(pytest.main([*sys.argv[2:], "-q", "-p", "no:cacheprovider"]))
' "$build" $tests
