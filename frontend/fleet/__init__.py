"""Simulates a fleet: the real scheduler, prefix cache and router in simulated time."""
