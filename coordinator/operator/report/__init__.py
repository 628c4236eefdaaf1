"""The report of finished runs: one HTML file that needs nothing else.

:mod:`runs` reads and checks run folders, :mod:`figures` makes plots and the tables behind them,
:mod:`trees` draws trees, :mod:`page` puts them on the page.
"""
