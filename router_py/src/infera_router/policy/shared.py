"""The demand ledger and the session table of `--workers N`, exact across processes (see region.py)."""
from __future__ import annotations

import struct
from operator import add, itemgetter
from typing import Callable, Sequence

from .affinity import Affinity, Binding
from .api import PolicySettings, RequestFacts
from .ledger import Account, Ledger
from .region import CELLS, Region, digest
from .targets import ROLES, Group, Target

BOUND = 4               # first of the header cells that count bound sessions, one for each role
APART = 16              # unused slots among the targets of a group that are read along rather than looked up one by one
PROBES = 16             # buckets looked at for a session; 16 at half load leave next to none without a place


class _Row(list):
    """The accounts of a group with the way to read them all at once from a column: what `Ledger.gather` gives here.

    `unpack`: None where the accounts have no slots, or lie too far apart. `offsets`: in bytes, one for each column.
    """

    __slots__ = ("unpack", "offsets", "tokens", "requests", "unknown")

    def __init__(self, accounts: list[Account], columns: list[int]):
        super().__init__(accounts)
        slots = [a.slot for a in accounts]
        low = min(slots, default=-1)
        span = max(slots, default=-1) - low + 1
        self.unpack = None
        if low >= 0 and span <= len(slots) + APART:
            self.unpack = struct.Struct(f"{CELLS * span}q").unpack_from
            self.offsets = [8 * (column + CELLS * low) for column in columns]
            in_order = slots == list(range(low, low + span))
            self.tokens, self.requests, self.unknown = (
                itemgetter(slice(what, None, CELLS)) if in_order else itemgetter(*[CELLS * (slot - low) + what for slot in slots])
                for what in range(3))


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
        self.lock, self.unlock = region.lock, region.unlock     # type: ignore[method-assign]
        self._map, self._cells = region.map, region.cells
        self._columns = [region.column(p) for p in range(region.processes)]
        self._mine = self._columns[process]
        self._row = struct.Struct("3q").pack_into
        self.slotless = 0               # targets beyond the region's slots; balanced within this process only

    def gather(self, accounts: list[Account]) -> list[Account]:
        return _Row(accounts, self._columns)

    def read(self, accounts: Sequence[Account], unknown: bool = True) -> tuple[Sequence[int], Sequence[int], int]:
        if type(accounts) is not _Row:
            accounts = _Row(accounts, self._columns)
        unpack = accounts.unpack
        if unpack is None:
            return self._one_by_one(accounts, unknown)
        shared, offsets = self._map, accounts.offsets
        row: Sequence[int] = unpack(shared, offsets[0])
        for offset in offsets[1:]:
            row = list(map(add, row, unpack(shared, offset)))
        return accounts.tokens(row), accounts.requests(row), sum(accounts.unknown(row)) if unknown else 0

    def _one_by_one(self, accounts: Sequence[Account], unknown: bool) -> tuple[Sequence[int], Sequence[int], int]:
        """Where a target has no slot all are compared by what this process alone has booked."""
        tokens, requests, strange = super().read(accounts, unknown)
        if min([a.slot for a in accounts], default=-1) < 0:
            return tokens, requests, strange
        cells = self._cells
        for column in self._columns:
            if column != self._mine:
                at = [column + CELLS * a.slot for a in accounts]
                tokens = [t + cells[i] for t, i in zip(tokens, at, strict=True)]
                requests = [r + cells[i + 1] for r, i in zip(requests, at, strict=True)]
                strange += sum([cells[i + 2] for i in at]) if unknown else 0
        return tokens, requests, strange

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
            self._row(self._map, 8 * (self._mine + CELLS * slot), account.tokens, account.requests, account.unknown)

    def _new(self, key: str, generation: str) -> Account:
        self.region.lock()
        try:
            slot = self._find(digest(key, generation))
            if slot >= 0:
                self._cells[self._mine + CELLS * slot + 3] = 1
            else:
                self.slotless += 1
        finally:
            self.region.unlock()
        return Account(key, generation, slot)

    def _forget(self, account: Account) -> None:
        if account.slot >= 0:
            self._write(account)
            self._cells[self._mine + CELLS * account.slot + 3] = 0

    def _find(self, wanted: tuple[int, int]) -> int:
        """The slot of a digest, an unclaimed one when it has none yet, -1 when all are claimed. Under the lock."""
        region, cells = self.region, self._cells
        names = cells[region.directory:region.directory + 2 * region.slots].tolist()
        claims = [cells[c:c + CELLS * region.slots].tolist()[3::CELLS] for c in self._columns]
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
