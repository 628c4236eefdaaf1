"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine is no defect: time is measured by the benchmarks, not by tests.
settings.register_profile("hedgerow", deadline=None)
settings.load_profile("hedgerow")
