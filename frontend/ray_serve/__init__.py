"""Arbora on Ray Serve: Ray places and restarts replicas, and changes their number.

Tokens do not travel through Ray. Only this package imports ray, which the extra `arbora[ray]` installs.
"""

from .application import build_app

__all__ = ["build_app"]
