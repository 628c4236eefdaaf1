"""Kernels of tables, split search and trees in C; :mod:`hedgerow.crypto.kernels` binds them."""
