"""Decisions: which target each leg of a request goes to. Pure and synchronous: no I/O and no clock but the one given."""
