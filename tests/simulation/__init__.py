"""The whole federation in one OS thread, under a virtual clock, from one seed.

:mod:`~tests.simulation.scheduler` has the time, the threads and the processes, and puts them in
place of Python's own before any code of the product is imported. :mod:`~tests.simulation.disk` and
:mod:`~tests.simulation.network` are what the processes work on, :mod:`~tests.simulation.federation`
starts the product's own processes there, :mod:`~tests.simulation.operations` draws what is done to
them, and :mod:`~tests.simulation.invariants` says what must hold whatever was done.

``python -m tests.simulation --seed 7`` runs one seed, ``--seconds 60`` fresh ones.
"""
