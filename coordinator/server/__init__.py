"""The coordinator process: jobs, attempts, barriers, store."""
