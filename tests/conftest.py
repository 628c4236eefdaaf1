"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine is no defect: time is measured by the benchmarks, not by tests.
# The same examples in every run: a change that breaks none of them breaks none on the next day.
settings.register_profile("hedgerow", deadline=None, derandomize=True)
settings.load_profile("hedgerow")
