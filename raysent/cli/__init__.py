"""The command line: parse, call one verb, print."""

from raysent.cli.app import main

__all__ = ["main"]
