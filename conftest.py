"""Loads the suite's pytest plugin, nothing else."""

pytest_plugins = ["fixtures.plugin"]
