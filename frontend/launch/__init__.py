"""Starting the processes of a server and keeping them alive."""
