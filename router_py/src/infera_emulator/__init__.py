"""Engines that are not engines: faults on demand, and ranks in lock-step. For tests and benches only."""
