"""The demand ledger: what each decode target holds, in tokens and requests, from booking to release.

An account belongs to one start of one engine (its generation). When a worker leaves, its account is closed but kept while it holds
anything, so a late release lands where it was booked and a worker that comes back as a new engine starts at zero.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Sequence


class Account:
    """What one target holds. `unknown` of its `requests` have no known size and are not in `tokens`."""

    __slots__ = ("key", "generation", "live", "tokens", "requests", "unknown", "slot")

    def __init__(self, key: str, generation: str, slot: int = -1):
        self.key = key
        self.generation = generation
        self.live = True
        self.tokens = 0
        self.requests = 0
        self.unknown = 0
        self.slot = slot


@dataclass(frozen=True, slots=True)
class Held:
    """A target's line in the demand view; sums over its generations."""

    target: str
    tokens: int
    requests: int
    unknown: int
    live: bool


class Ledger:
    """The ledger of one process. All calls are synchronous and on one thread, so selection and booking are one step by themselves."""

    shared = False

    def __init__(self) -> None:
        self._live: dict[str, Account] = {}
        self._closed: list[Account] = []
        self.faults = 0                     # releases that would have gone below zero; always 0 unless there is a bug

    def lock(self) -> None:
        """Begin one selection and booking (nothing to do in one process)."""

    def unlock(self) -> None:
        """End it."""

    def open(self, key: str, generation: str) -> Account:
        """The account of a live target, the same one as long as the target stays.

        A target that comes back with the generation it left with is the same engine, still holding what it held: it gets its old account.
        An empty generation is unknown, and a return is then a new start.
        """
        account = self._live.get(key)
        if account is not None and account.generation == generation:
            return account
        if account is not None:
            self.close(key)
        account = next((a for a in self._closed if a.key == key and a.generation == generation), None) if generation else None
        if account is None:
            account = self._new(key, generation)
        else:
            self._closed.remove(account)
            account.live = True
        self._live[key] = account
        return account

    def close(self, key: str) -> None:
        """The target left. What it holds is kept until it is released."""
        account = self._live.pop(key, None)
        if account is not None:
            account.live = False
            if account.requests:
                self._closed.append(account)
            else:
                self._forget(account)

    def live_keys(self) -> list[str]:
        return list(self._live)

    def gather(self, accounts: list[Account]) -> list[Account]:
        """The accounts of a group, in a form that `read` is quick with."""
        return accounts

    def read(self, accounts: Sequence[Account], unknown: bool = True) -> tuple[Sequence[int], Sequence[int], int]:
        """Held tokens and requests by account, and how many requests of unknown size there are among them all (0 unless asked for)."""
        return [a.tokens for a in accounts], [a.requests for a in accounts], sum([a.unknown for a in accounts]) if unknown else 0

    def book(self, account: Account, tokens: int | None) -> None:
        account.requests += 1
        if tokens is None:
            account.unknown += 1
        else:
            account.tokens += tokens

    def release(self, account: Account, tokens: int | None) -> None:
        if account.requests <= 0 or (tokens is None and account.unknown <= 0) or (tokens is not None and account.tokens < tokens):
            self.faults += 1
            return
        account.requests -= 1
        if tokens is None:
            account.unknown -= 1
        else:
            account.tokens -= tokens
        if not account.requests and not account.live:
            self._closed.remove(account)
            self._forget(account)

    def held(self) -> list[Held]:
        """One line per target, live ones with zeros included; a target that left is listed while it holds anything."""
        lines: dict[str, Held] = {}
        for account in self._accounts():
            (tokens,), (requests,), unknown = self.read((account,))
            old = lines.get(account.key)
            if old is not None:
                tokens, requests, unknown = tokens + old.tokens, requests + old.requests, unknown + old.unknown
            lines[account.key] = Held(account.key, tokens, requests, unknown, account.live or (old is not None and old.live))
        return [lines[key] for key in sorted(lines)]

    def own(self) -> tuple[int, int]:
        """Tokens and requests that this process has booked and not released."""
        return sum(a.tokens for a in self._accounts()), sum(a.requests for a in self._accounts())

    def _accounts(self) -> Iterable[Account]:
        yield from self._live.values()
        yield from self._closed

    def _new(self, key: str, generation: str) -> Account:
        return Account(key, generation)

    def _forget(self, account: Account) -> None:
        """Nothing refers to this account any more."""
