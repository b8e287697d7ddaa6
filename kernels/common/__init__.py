"""Tools that several operations share: numba's compilers, threads, uploads of small arrays."""
