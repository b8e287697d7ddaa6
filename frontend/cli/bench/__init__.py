"""`arbora bench`: load on a running server, and its figures."""
