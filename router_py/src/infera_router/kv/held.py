"""What parsed JSON takes in memory, which for lists and objects of little is many times its text."""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof
from typing import Any


def held(values: Iterable[Any]) -> int:
    """Bytes that the values and all in them take; one that occurs twice counts twice."""
    total = 0
    waiting = list(values)
    while waiting:
        total += sum(map(getsizeof, waiting))
        within: list[Any] = []
        for value in waiting:
            if type(value) is dict:
                within += value
                within += value.values()
            elif type(value) is list:
                within += value
        waiting = within
    return total


def members_held(members: Iterable[dict]) -> int:
    """The same for objects whose own keys are shared, as a message's in template form are."""
    members = list(members)
    values: list[Any] = []
    for member in members:
        values += member.values()
    return sum(map(getsizeof, members)) + held(values)
