"""The compiler that the scheduler calls, its threads, its caches and its worker processes."""
