"""`arbora chat`: a conversation with a running server."""
