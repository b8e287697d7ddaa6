"""`arbora bench`: loads a running server and shows its speed."""
