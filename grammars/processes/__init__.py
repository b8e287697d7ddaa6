"""What processes that read grammars of clients have in common."""
