"""Whether a worker counts a prompt's tokens as we do: the only way to notice that hashes of a worker never match."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from . import usage

log = logging.getLogger(__name__)

# One wrong count can come from a client's odd body; a run of them is another template or tokenizer.
STRIKES = 5
FORGIVEN_BY = 20


class SelfCheck:
    """Compares our prompt size with `usage.prompt_tokens` of the reply, by worker.

    A mismatch is a strike, FORGIVEN_BY matches in a row take the strikes back; at STRIKES the worker is not trusted: it is routed on load.
    A worker that left (`forget`) begins anew.
    """

    def __init__(self) -> None:
        self.compared: dict[str, int] = {}
        self.mismatches: dict[str, int] = {}
        self._strikes: dict[str, int] = {}
        self._good: dict[str, int] = {}

    def observe(self, worker_id: str, ours: int | None, usage_prompt_tokens: int | None) -> None:
        """Take one reply with usage into account; nothing happens where either count is unknown. Never raises."""
        if not isinstance(ours, int) or not isinstance(usage_prompt_tokens, int):
            return
        self.compared[worker_id] = self.compared.get(worker_id, 0) + 1
        if ours == usage_prompt_tokens:
            if worker_id in self._strikes:
                self._good[worker_id] = good = self._good.get(worker_id, 0) + 1
                if good >= FORGIVEN_BY:
                    if not self.trusted(worker_id):
                        log.warning("%s: its prompt sizes equal ours again; its cached pages count again", worker_id)
                    del self._strikes[worker_id], self._good[worker_id]
            return
        self._good[worker_id] = 0
        self.mismatches[worker_id] = self.mismatches.get(worker_id, 0) + 1
        before = self._strikes.get(worker_id, 0)
        self._strikes[worker_id] = min(before + 1, STRIKES)
        if before == STRIKES - 1:
            log.error("%s: counts %d prompt tokens where the router counts %d, again and again; it is routed on load. Check that "
                      "--router-tokenizer-path is the worker's model folder and that the worker has no --chat-template of its own",
                      worker_id, usage_prompt_tokens, ours)

    def reply(self, worker_ids: Iterable[str], ours: int | None, tail: bytes) -> None:
        """The same for a reply that ends with `tail` and that these workers made."""
        if ours is None:
            return
        said = usage.prompt_tokens(tail)
        for worker_id in worker_ids:
            self.observe(worker_id, ours, said)

    def trusted(self, worker_id: str) -> bool:
        return self._strikes.get(worker_id, 0) < STRIKES

    def forget(self, worker_id: str) -> None:
        """The worker is gone or another one; its totals stay, its standing does not."""
        self._strikes.pop(worker_id, None)
        self._good.pop(worker_id, None)
