"""The words between the request's life cycle (pd/) and the decisions (policy/)."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .targets import Target

# A count of tokens beyond this cannot be added up exactly with a float weight; such a size is unknown.
MAX_TOKENS = 1 << 50


@dataclass(slots=True)
class RequestFacts:
    """What a pick may know of a request. Every field but the model may be missing."""

    model: str | None
    tokens: int | None = None           # prompt tokens × n; None = unknown
    pages: Any = None                   # kv.pages.Pages; None = route on load
    session: str | None = None          # affinity key, see affinity.session_of
    cost_scale: float = 1.0             # retention: 2.0 long, 0.1 none
    images: tuple[int, ...] = ()        # 64-bit keys of the images; any image makes the request multimodal


class NoTarget(Exception):
    """No target for this request.

    kind: `no_worker` (nobody serves the model), `half_pair` (one side of PD missing and no mixed worker), `excluded` (all that could serve
    have failed this request already), `model_required` (no model named, several served). `missing_role` is set for half_pair.
    """

    def __init__(self, kind: str, missing_role: str | None = None, counts: dict[str, int] | None = None, models: tuple[str, ...] = ()):
        self.kind = kind
        self.missing_role = missing_role
        self.counts = counts or {"prefill": 0, "decode": 0, "mixed": 0}
        self.models = models
        super().__init__(self.text())

    def text(self) -> str:
        c = self.counts
        if self.kind == "half_pair":
            have = "decode" if self.missing_role == "prefill" else "prefill"
            return f"no active {self.missing_role} worker for this model ({c[have]} {have} active, no mixed worker)"
        if self.kind == "excluded":
            return (f"every worker that could serve this request has failed it ({c['prefill']} prefill, {c['decode']} decode, "
                    f"{c['mixed']} mixed active)")
        if self.kind == "model_required":
            return "the request names no model and several are served"
        return "no active worker serves this model"


class Lease:
    """What a pick booked. `release` ends all of it, once, whatever happened to the request; it never raises and never waits."""

    __slots__ = ("_policy", "id", "account", "tokens", "prefill_flight", "decode_flight", "bindings", "probes", "prefill_leg", "decode_leg", "__weakref__")

    def __init__(self, policy: Any, lease_id: int):
        self._policy = policy
        self.id = lease_id
        self.account: Any = None            # ledger entry of the decode target
        self.tokens: int | None = None
        self.prefill_flight: Any = None
        self.decode_flight: Any = None
        self.bindings: Any = None           # sessions that this lease keeps alive
        self.probes: Any = None             # half-open breakers that this request tries
        self.prefill_leg: str | None = None     # target keys that its legs count on as busy; only where sessions may escape
        self.decode_leg: str | None = None

    @property
    def held(self) -> bool:
        return self._policy is not None

    def prefill_done(self) -> None:
        """The prefill leg has ended: its blocks are no longer in flight there."""
        policy = self._policy
        if policy is None:
            return
        flight, self.prefill_flight = self.prefill_flight, None
        if flight is not None:
            flight.end()
        leg, self.prefill_leg = self.prefill_leg, None
        if leg is not None:
            policy.affinity.leave(leg)

    def release(self) -> None:
        policy, self._policy = self._policy, None
        if policy is not None:
            policy.end(self)

    def __del__(self):
        # Last resort for a lease that its request's code lost; counted, so that it shows as the bug it is.
        policy = self._policy
        if policy is not None:
            self._policy = None
            policy.end(self, lost=True)


class Pick:
    """Where a request goes: prefill and decode, or mixed alone. Its lease is held until the caller releases it."""

    __slots__ = ("prefill", "decode", "mixed", "lease", "suggested", "blocks", "prefill_hit", "decode_hit", "session_hit")

    def __init__(self, prefill: Target | None, decode: Target | None, mixed: Target | None, lease: Lease):
        self.prefill = prefill
        self.decode = decode
        self.mixed = mixed
        self.lease = lease
        self.suggested: Target | None = None    # shadow mode: where demand would have gone
        self.blocks = 0                         # full pages of the prompt, 0 when it was not hashed
        self.prefill_hit = 0                    # of these, held by the picked target (mixed: here too)
        self.decode_hit = 0
        self.session_hit = False                # the first leg went where its session was bound


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Settings of the decisions; `problems` says what is wrong with them, naming the option."""

    router_policy: str = "round-robin"              # or kv-aware
    decode_input_demand: str = "off"                # on, shadow, off
    decode_request_weight: float = 0.0              # tokens per held request
    kv_overlap_weight: float = 1.0
    kv_prefill_overlap_weight: float | None = None
    kv_decode_overlap_weight: float | None = None
    session_affinity: str = "off"                   # off, prefill, both
    session_affinity_ttl_s: float = 3600.0
    session_affinity_headers: tuple[str, ...] = field(default=("X-Dynamo-Session-ID", "X-Session-ID", "X-SMG-Routing-Key", "X-Correlation-ID"))
    session_affinity_capacity: int = 65536
    session_affinity_escape: float = 0.0            # leave a target that is so many times as busy as the others; 0 = never
    breaker_failure_threshold: int = 3
    breaker_cooldown_s: float = 5.0
    breaker_max_cooldown_s: float = 60.0

    def problems(self) -> list[str]:
        faults = []

        def check(ok: bool, option: str, value: Any, want: str) -> None:
            if not ok:
                faults.append(f"{option}: {value!r} {want}")

        def number(value: Any) -> bool:
            return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

        check(self.router_policy in ("round-robin", "kv-aware"), "--router-policy", self.router_policy, "is not one of round-robin, kv-aware")
        check(self.decode_input_demand in ("on", "shadow", "off"), "--decode-input-demand", self.decode_input_demand, "is not one of on, shadow, off")
        weight = self.decode_request_weight
        check(number(weight) and weight >= 0, "--decode-request-weight", weight, "is not a finite number ≥ 0")
        if number(weight) and weight > 0 and self.decode_input_demand == "off":
            faults.append(f"--decode-request-weight: {weight:g} needs --decode-input-demand on or shadow (it is off)")
        for option, value in (("--kv-overlap-weight", self.kv_overlap_weight), ("--kv-prefill-overlap-weight", self.kv_prefill_overlap_weight),
                              ("--kv-decode-overlap-weight", self.kv_decode_overlap_weight)):
            check(value is None or (number(value) and value >= 0), option, value, "is not a finite number ≥ 0")
        check(self.session_affinity in ("off", "prefill", "both"), "--session-affinity", self.session_affinity, "is not one of off, prefill, both")
        check(number(self.session_affinity_ttl_s) and 1 <= self.session_affinity_ttl_s <= 86400, "--session-affinity-ttl-secs",
              self.session_affinity_ttl_s, "is not in 1..86400")
        check(self.session_affinity_capacity >= 1, "--session-affinity-capacity", self.session_affinity_capacity, "is not ≥ 1")
        check(number(self.session_affinity_escape) and (self.session_affinity_escape == 0 or self.session_affinity_escape > 1),
              "--session-affinity-escape", self.session_affinity_escape, "is neither 0 nor > 1")
        check(self.breaker_failure_threshold >= 0, "--breaker-failure-threshold", self.breaker_failure_threshold, "is not ≥ 0 (0 disables)")
        check(number(self.breaker_cooldown_s) and self.breaker_cooldown_s > 0, "--breaker-cooldown-s", self.breaker_cooldown_s, "is not > 0")
        check(number(self.breaker_max_cooldown_s) and self.breaker_max_cooldown_s >= self.breaker_cooldown_s, "--breaker-max-cooldown-s",
              self.breaker_max_cooldown_s, "is less than --breaker-cooldown-s")
        return faults
