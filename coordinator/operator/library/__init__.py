"""Hedgerow in Python: jobs, runs, models and coordinators as objects; `import hedgerow` gives them.

The commands of ``hedgerow`` and these functions run the same code. Everything heavy is imported
when it is first used.
"""
