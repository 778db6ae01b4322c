"""Decode ranks in lock-step: an emulator for balance work, and nothing that measures an engine."""
