"""The embedded language: programs of many calls to a model, whose forks share prefixes."""
