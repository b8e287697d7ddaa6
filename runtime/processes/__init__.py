"""What every process needs: its start, its sockets, its signs of life."""
