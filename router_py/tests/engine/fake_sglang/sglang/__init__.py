"""A FAKE sglang for the supervisor's tests: a parser and a server that do what a script says. Nothing here generates tokens."""

__version__ = "0.0.fake"
