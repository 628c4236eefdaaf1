"""The federation in containers: run by ``make test-containers`` only, for it needs an engine."""
