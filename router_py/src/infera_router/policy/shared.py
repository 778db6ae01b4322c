"""The demand ledger and the session table of `--workers N`, exact across processes (see region.py)."""
from __future__ import annotations

from typing import Callable, Sequence

from .affinity import Affinity, Binding
from .api import PolicySettings, RequestFacts
from .ledger import Account, Ledger
from .region import Region, digest
from .targets import ROLES, Group, Target

BOUND = 4               # first of the header cells that count bound sessions, one for each role
PROBES = 16             # buckets looked at for a session; 16 at half load leave next to none without a place


class SharedLedger(Ledger):
    """A process's own bookings in its column; what is read is the sum of all columns.

    A target has the same slot in every process, found by the digest of its key and generation, although each process learns of it from etcd
    at its own moment. A slot is given away only when no process claims it.
    """

    shared = True

    def __init__(self, region: Region, process: int):
        super().__init__()
        region.clear_ledger(process)
        self.region = region
        self.process = process
        self._cells = region.cells
        self._tokens, self._requests, self._unknown, self._claims = (region.column(process, what) for what in range(4))
        others = [p for p in range(region.processes) if p != process]
        self._other_tokens = [region.column(p, 0) for p in others]
        self._other_requests = [region.column(p, 1) for p in others]
        self._other_unknown = [region.column(p, 2) for p in others]
        self.slotless = 0               # targets beyond the region's slots; balanced within this process only

    def lock(self) -> None:
        self.region.lock()

    def unlock(self) -> None:
        self.region.unlock()

    def read(self, accounts: Sequence[Account]) -> tuple[list[int], list[int], int]:
        cells = self._cells
        tokens = [a.tokens for a in accounts]
        requests = [a.requests for a in accounts]
        unknown = sum([a.unknown for a in accounts])
        slots = [a.slot for a in accounts]
        if min(slots) < 0:
            return tokens, requests, unknown
        for base in self._other_tokens:
            tokens = [t + cells[base + s] for t, s in zip(tokens, slots, strict=True)]
        for base in self._other_requests:
            requests = [r + cells[base + s] for r, s in zip(requests, slots, strict=True)]
        for base in self._other_unknown:
            unknown += sum([cells[base + s] for s in slots])
        return tokens, requests, unknown

    def book(self, account: Account, tokens: int | None) -> None:
        super().book(account, tokens)
        self._write(account)

    def release(self, account: Account, tokens: int | None) -> None:
        super().release(account, tokens)
        if account.requests or account.live:
            self._write(account)

    def _write(self, account: Account) -> None:
        slot = account.slot
        if slot >= 0:
            cells = self._cells
            cells[self._tokens + slot] = account.tokens
            cells[self._requests + slot] = account.requests
            cells[self._unknown + slot] = account.unknown

    def _new(self, key: str, generation: str) -> Account:
        self.region.lock()
        try:
            slot = self._find(digest(key, generation))
            if slot >= 0:
                self._cells[self._claims + slot] = 1
            else:
                self.slotless += 1
        finally:
            self.region.unlock()
        return Account(key, generation, slot)

    def _forget(self, account: Account) -> None:
        if account.slot >= 0:
            self._write(account)
            self._cells[self._claims + account.slot] = 0

    def _find(self, wanted: tuple[int, int]) -> int:
        """The slot of a digest, an unclaimed one when it has none yet, -1 when all are claimed. Under the lock."""
        region, cells = self.region, self._cells
        names = cells[region.directory:region.directory + 2 * region.slots].tolist()
        claims = [cells[c:c + region.slots].tolist() for c in (region.column(p, 3) for p in range(region.processes))]
        claimed = [sum(c) for c in zip(*claims, strict=True)]
        lows = names[0::2]
        slot = -1
        while wanted[0] in lows[slot + 1:]:
            slot = lows.index(wanted[0], slot + 1)
            if names[2 * slot + 1] == wanted[1] and claimed[slot]:
                return slot
        if 0 not in claimed:
            return -1
        slot = claimed.index(0)
        cells[region.directory + 2 * slot], cells[region.directory + 2 * slot + 1] = wanted
        return slot


def _session_name(key: tuple[str, str, str]) -> tuple[int, int]:
    """Digest of (model, session, role), the role readable in it."""
    low, high = digest(*key)
    return low, high & ~3 | ROLES.index(key[2])


def _role_index(name: tuple[int, int]) -> int:
    return name[1] & 3


class _SharedBinding(Binding):
    __slots__ = ("cell", "name")

    def __init__(self, key: tuple[str, str, str], target: Target, now: float, cell: int, name: tuple[int, int]):
        super().__init__(key, target, now)
        self.cell = cell                # first cell of the session's bucket
        self.name = name


class SharedAffinity(Affinity):
    """Sessions bound for all processes: a turn that reaches another process than the last one goes to the same target.

    Looking up a bound session takes no lock; binding one does, so that first requests in two processes agree. What escape compares is this
    process's share of the load.
    """

    shared = True

    def __init__(self, settings: PolicySettings, clock: Callable[[], float], region: Region, process: int):
        super().__init__(settings, clock)
        self.region = region
        self._cells = region.cells
        self._mine = 4 + process
        self._ids: dict[int, tuple[Target, int]] = {}       # id(target) → (target, its number)

    def lock(self) -> None:
        self.region.lock()

    def unlock(self) -> None:
        self.region.unlock()

    def find(self, group: Group, facts: RequestFacts, now: float) -> tuple[int, Binding | None]:
        key = (facts.model or "", facts.session, group.role)
        name = _session_name(key)
        cell = self._bucket(name)
        if cell < 0:
            return -1, None
        cells = self._cells
        number, last = cells[cell + 2], cells[cell + 3]
        if not self._active_at(cell) and now - last / 1e9 > self.ttl:
            return -1, None
        for index, target in enumerate(group.targets):
            if self._number(target) == number:
                binding = _SharedBinding(key, target, now, cell, name)
                return (-1 if self._overloaded(group, target) else index), binding
        return -1, None

    def bind(self, group: Group, target: Target, facts: RequestFacts, binding: Binding | None, now: float) -> Binding | None:
        role, cells = group.role, self._cells
        if binding is not None and binding.target is target:
            self.hits[role] = self.hits.get(role, 0) + 1
            cell = binding.cell
        else:
            self.escapes += binding is not None and self.escape > 0
            key = (facts.model or "", facts.session, role)
            name = _session_name(key)
            cell = self._bucket(name)
            if cell < 0:
                cell = self._place(name, now)
            if cell < 0:
                self.unbound += 1
                return None
            binding = _SharedBinding(key, target, now, cell, name)
            cells[cell + 2] = self._number(target)
            cells[cell], cells[cell + 1] = name
            self.selected[role] = self.selected.get(role, 0) + 1
        cells[cell + 3] = int(now * 1e9)
        cells[cell + self._mine] += 1
        return binding

    def unbind(self, binding: Binding) -> None:
        cells, cell = self._cells, binding.cell
        if cells[cell + self._mine] > 0:
            cells[cell + self._mine] -= 1
        if (cells[cell], cells[cell + 1]) == binding.name:
            cells[cell + 3] = int(self.clock() * 1e9)

    def invalidate(self, binding: Binding) -> None:
        cells, cell = self._cells, binding.cell
        if (cells[cell], cells[cell + 1]) == binding.name and cells[cell + 2] == self._number(binding.target):
            cells[cell + 2] = 0         # no target has the number 0: the next request binds anew

    @property
    def active(self) -> dict[str, int]:
        return {role: self._cells[BOUND + index] for index, role in enumerate(ROLES)}

    def _number(self, target: Target) -> int:
        known = self._ids.get(id(target))
        if known is None or known[0] is not target:
            if len(self._ids) > 4 * 4096:
                self._ids.clear()
            known = self._ids[id(target)] = (target, digest(target.key, repr(target.worker))[0])
        return known[1]

    def _active_at(self, cell: int) -> int:
        return sum(self._cells[cell + 4:cell + self.region.stride].tolist())

    def _bucket(self, name: tuple[int, int]) -> int:
        """First cell of the session's bucket, -1 when it has none."""
        region, cells = self.region, self._cells
        mask, stride = region.buckets - 1, region.stride
        low, high = name
        for probe in range(PROBES):
            cell = region.sessions + ((low + probe) & mask) * stride
            if cells[cell] == low and cells[cell + 1] == high:
                return cell
        return -1

    def _place(self, name: tuple[int, int], now: float) -> int:
        """A free bucket, else that of the session idle for longest, among those that this session may use; never an active one."""
        region, cells = self.region, self._cells
        mask, stride = region.buckets - 1, region.stride
        oldest, best = -1, None
        for probe in range(PROBES):
            cell = region.sessions + ((name[0] + probe) & mask) * stride
            if not self._active_at(cell):
                if not cells[cell]:
                    cells[BOUND + _role_index(name)] += 1
                    return cell
                if best is None or cells[cell + 3] < best:
                    oldest, best = cell, cells[cell + 3]
        if oldest >= 0:
            cells[BOUND + _role_index((cells[oldest], cells[oldest + 1]))] -= 1
            cells[BOUND + _role_index(name)] += 1
        return oldest


def attach(fd: int, process: int, settings: PolicySettings, clock: Callable[[], float]) -> tuple[SharedLedger, SharedAffinity | None]:
    """What process number `process` gives to its Policy; fd: the parent's Region.fd."""
    region = Region(fd)
    ledger = SharedLedger(region, process)
    return ledger, SharedAffinity(settings, clock, region, process) if settings.session_affinity != "off" else None
