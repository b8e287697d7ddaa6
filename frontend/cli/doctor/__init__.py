"""`arbora doctor`: checks of this machine."""
