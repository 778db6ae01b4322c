"""Session affinity: the turns of a conversation go to the prefill (or decode) that holds its prefix."""
from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Iterable, Mapping

from .api import PolicySettings, RequestFacts
from .targets import ROLES, Group, Target

MAX_ID_BYTES = 1024
ESCAPE_SLACK = 4        # legs that no session leaves a target for
ROOM_LOOKS = 64         # sessions looked at to find one that can go


class SessionError(ValueError):
    """A session header that cannot be used; the text names it (answer 400)."""


def session_of(pairs: Iterable[tuple[str, str]], body: Mapping[str, Any] | None, names: Iterable[str]) -> str | None:
    """The session key of a request: the first header of `names` that is there, else the body's `prompt_cache_key`, else None.

    pairs: header names and values in the order they came. A header that is there twice, empty or longer than 1,024 bytes is a
    SessionError; a `prompt_cache_key` that is no usable string is the body's affair and ignored.
    """
    found: dict[str, str] = {}
    wanted = {name.lower(): name for name in names}
    for name, value in pairs:
        low = name.lower()
        if low in wanted:
            if low in found:
                raise SessionError(f"header {wanted[low]} is there twice")
            found[low] = value.strip()
    for low, name in wanted.items():
        value = found.get(low)
        if value is None:
            continue
        if not value:
            raise SessionError(f"header {name} is empty")
        if len(value.encode("utf-8", "replace")) > MAX_ID_BYTES:
            raise SessionError(f"header {name} is longer than {MAX_ID_BYTES} bytes")
        return value
    key = body.get("prompt_cache_key") if body is not None else None
    if isinstance(key, str) and 0 < len(key.encode("utf-8", "replace")) <= MAX_ID_BYTES:
        return key
    return None


class Binding:
    """One session of one role on one target. `active` leases hold it; it can only expire without any."""

    __slots__ = ("key", "target", "active", "last", "dead")

    def __init__(self, key: tuple[str, str, str], target: Target, now: float):
        self.key = key
        self.target = target
        self.active = 0
        self.last = now
        self.dead = False

    @property
    def worker_id(self) -> str:
        return self.target.worker.worker_id


class Affinity:
    """The table of one process. Selecting and binding is one step, as all runs on one thread. It never refuses a request: when it is full of
    active sessions, a new one is just not bound. `escapes` counts sessions that left a target they could have stayed on."""

    shared = False

    def lock(self) -> None:
        """Begin one selection and binding (nothing to do in one process)."""

    def unlock(self) -> None:
        """End it."""

    def __init__(self, settings: PolicySettings, clock: Callable[[], float]):
        self.clock = clock                      # seconds, the same clock as the picks'
        self.ttl = settings.session_affinity_ttl_s
        self.capacity = settings.session_affinity_capacity
        self.escape = settings.session_affinity_escape
        self._table: OrderedDict[tuple[str, str, str], Binding] = OrderedDict()     # least recently used first
        self._busy: dict[str, int] = {}         # target key → legs under way there, bound or not; kept only where sessions may escape
        self.hits: dict[str, int] = {}          # role → picks that followed a binding
        self.selected: dict[str, int] = {}      # role → picks that made one
        self._bound = dict.fromkeys(ROLES, 0)   # role → sessions in the table
        self.unbound = 0                        # picks that found the table full
        self.escapes = 0

    def find(self, group: Group, facts: RequestFacts, now: float) -> tuple[int, Binding | None]:
        """Index of the target that the session is bound to, -1 when there is none or it cannot be used; and the binding."""
        binding = self._table.get((facts.model or "", facts.session, group.role))
        if binding is None:
            return -1, None
        if not binding.active and now - binding.last > self.ttl:
            self._drop(binding)
            return -1, None
        try:
            index = group.targets.index(binding.target)
        except ValueError:
            return -1, binding
        return (-1 if self._overloaded(group, binding.target) else index), binding

    def bind(self, group: Group, target: Target, facts: RequestFacts, binding: Binding | None, now: float) -> Binding | None:
        """Book one request of the session on the target that it really goes to, and bind the session to it."""
        role = group.role
        if binding is not None and binding.target is target:
            self.hits[role] = self.hits.get(role, 0) + 1
            self._table.move_to_end(binding.key)
        else:
            if binding is not None:
                self._drop(binding)
                self.escapes += self.escape > 0 and binding.target in group.targets
            elif len(self._table) >= self.capacity and not self._room(now):
                self.unbound += 1
                return None
            binding = Binding((facts.model or "", facts.session, role), target, now)
            self._table[binding.key] = binding
            self._bound[role] += 1
            self.selected[role] = self.selected.get(role, 0) + 1
        binding.active += 1
        binding.last = now
        return binding

    def unbind(self, binding: Binding) -> None:
        """One request of the session has ended."""
        binding.active -= 1
        binding.last = self.clock()
        if not binding.dead:
            self._table.move_to_end(binding.key)

    def enter(self, key: str) -> None:
        """A leg begins on a target."""
        self._busy[key] = self._busy.get(key, 0) + 1

    def leave(self, key: str) -> None:
        """It has ended."""
        left = self._busy[key] - 1
        if left:
            self._busy[key] = left
        else:
            del self._busy[key]

    def invalidate(self, binding: Binding) -> None:
        """The bound worker failed. Only this very binding goes: a newer one of the same session is not touched."""
        if not binding.dead:
            self._drop(binding)

    def _overloaded(self, group: Group, target: Target) -> bool:
        """Whether a session may leave its target: more legs are under way there than `escape` times the mean of the others, and a few."""
        if not self.escape or group.size < 2:
            return False
        busy = self._busy
        mine = busy.get(target.key, 0)
        others = sum([busy.get(t.key, 0) for t in group.targets]) - mine
        return mine > self.escape * others / (group.size - 1) + ESCAPE_SLACK

    @property
    def active(self) -> dict[str, int]:
        """Sessions that are bound, by role."""
        return dict(self._bound)

    def _drop(self, binding: Binding) -> None:
        binding.dead = True
        if self._table.get(binding.key) is binding:
            del self._table[binding.key]
            self._bound[binding.key[2]] -= 1

    def _room(self, now: float) -> bool:
        """Make room by forgetting the session that is idle for longest; never an active one. Looks at a bounded number of them."""
        for _ in range(min(ROOM_LOOKS, len(self._table))):
            binding = next(iter(self._table.values()))
            if not binding.active:
                self._drop(binding)
                return True
            self._table.move_to_end(binding.key)        # in use, so it is no old one
        return False
