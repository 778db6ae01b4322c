"""Round robin: each group of targets (one role of one model) rotates by itself."""
from __future__ import annotations

from typing import Any

from .targets import Group


class RoundRobin:
    """The ordinary policy that looks at nothing. Also the shape that every ordinary policy has."""

    name = "round-robin"
    wants_pages = False

    def open(self, key: str, role: str) -> Any:
        """State for a new target, kept in Group.homes; None when the policy needs none."""
        return None

    def retain(self, keys: set[str]) -> None:
        """Forget every target but these."""

    def scores(self, group: Group, facts: Any) -> list | None:
        """A score for each target, lower is better, without any effect; None when all are equal."""
        return None

    def picked(self, group: Group, index: int, facts: Any, scores: list | None) -> Any:
        """This target was picked: remember it. Returns what is in flight (with .end()), or None."""
        return None
