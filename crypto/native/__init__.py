"""Optional compiled kernels, each with a pure-Python twin of identical output."""
