"""The compiler that the scheduler calls, with its threads, caches and worker processes."""
