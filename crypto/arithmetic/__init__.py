"""Residues of a modulus and points of Curve25519, and the choice of their kernels."""
