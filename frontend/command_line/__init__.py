"""The commands of `arbora` beside `serve` and `key`, each loaded only when it runs."""
