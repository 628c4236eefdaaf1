"""Paillier and EC-ElGamal, and sums of encrypted gradients under either."""
