# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The six smoke checks of a deployment, from its run record. Each gives {name, status: pass|fail|n/a, evidence, seconds}.

A check that cannot apply to a deployment says so (n/a) and is never counted as passed.
"""
from __future__ import annotations

import threading
import time

from ansible_collections.infera.serving.plugins.module_utils.smoke_client import Client, SmokeError

__all__ = ["Smoke", "NotApplicable"]

# 127 * 31 = 3937. Thinking shares the budget, hence the many tokens.
QUESTION, ANSWER = "What is 127 * 31? Answer with the number.", "3937"
PADDING = "Line %d of the ledger says that nothing happened on that day and that the weather was fair. "
HOLD_TOKENS = 512
DEMAND = "infera_router_decode_demand_requests"
OLDEST = "infera_router_lease_oldest_seconds"
ENDED, OPEN = "infera_requests_total", "infera_request_inflight"
ASKED = 3


class NotApplicable(Exception):
    """The check has no meaning for this deployment; the text says why."""


class Smoke:
    """Runs the checks. *wait*: seconds that registration and the return of the gauge to 0 may take."""

    def __init__(self, record, timeout=300, wait=60, client=None):
        self.record, self.wait = record, wait
        # Derived from the record, after it was read.
        self.client = client or Client(record["router_url"], record["model"]["name"], timeout)
        self.random = bool(record["model"].get("made"))
        self.engines = [c for c in record["containers"] if c["role"] in ("prefill", "decode", "mixed")]
        self.pd = any(c["role"] == "decode" for c in self.engines)
        self.prefix = "".join(PADDING % n for n in range(1, 40))
        self.nonce = f"{time.time():.3f}"

    def run(self):
        checks = [("registration", self.registration), ("answer", self.answer), ("stream", self.stream), ("prefix cache", self.cache),
                  ("every rank", self.ranks), ("transfer and speculation", self.transfer) if self.pd else ("other routes", self.routes)]
        results = []
        for name, check in checks:
            started = time.monotonic()
            try:
                status, evidence = "pass", check()
            except NotApplicable as reason:
                status, evidence = "n/a", str(reason)
            except SmokeError as error:
                status, evidence = "fail", str(error)
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                status, evidence = "fail", f"an answer has not the expected form: {type(error).__name__}: {error}"
            results.append({"name": name, "status": status, "evidence": evidence, "seconds": round(time.monotonic() - started, 2)})
        return results

    def registration(self):
        deadline, faults = time.monotonic() + self.wait, ["no look yet"]
        while faults:
            faults, shown = self._registered()
            if faults and time.monotonic() > deadline:
                raise SmokeError("; ".join(faults))
            if faults:
                time.sleep(1)
        return shown

    def _registered(self):
        answer = self.client.get("/v1/workers")
        if answer.status_code != 200:
            return [f"/v1/workers: HTTP {answer.status_code}"], ""
        rows = answer.json()
        rows = rows if isinstance(rows, list) else rows.get("workers", rows.get("data", []))
        workers, faults = {row["worker_id"]: row for row in rows}, []
        addresses = {host["name"]: host["address"] for host in self.record["hosts"]}
        for engine in self.engines:
            key = f"{addresses[engine['host']]}:{engine['ports']['http']}"
            row = workers.get(key)
            if row is None:
                faults.append(f"{engine['name']} ({key}) is not registered")
                continue
            for field, wanted, found in (
                    ("status", "active", row.get("status") or "active"), ("disagg_mode", engine["role"], row.get("disagg_mode")),
                    ("dp_size", engine["ranks"], row.get("dp_size") or 1), ("model_name", self.record["model"]["name"], row.get("model_name"))):
                if found != wanted:
                    faults.append(f"{engine['name']} ({key}) has {field} {found!r}, the deployment {wanted!r}")
            if "kv_events" in engine["ports"] and not row.get("kv_events_endpoint"):
                faults.append(f"{engine['name']} ({key}) announces no KV events")
        return faults, ", ".join(f"{role} {sum(1 for e in self.engines if e['role'] == role)}" for role in ("prefill", "decode", "mixed")
                                 if any(e["role"] == role for e in self.engines)) + f"; ranks {sum(e['ranks'] for e in self.engines)}"

    def _prompt(self):
        return self.prefix + QUESTION

    def answer(self):
        tokens = 24 if self.random else 2048
        body = self.client.chat(self._prompt(), tokens)
        text, usage = _text(body), body["usage"]
        if usage["completion_tokens"] < 1 or usage["prompt_tokens"] < 64:
            raise SmokeError(f"usage {usage} does not fit the prompt")
        if self.random:
            return f"{usage['prompt_tokens']} prompt tokens; {self._repeated(text, tokens)} (a random model does no arithmetic)"
        if ANSWER not in text.replace(",", "").replace(" ", ""):
            raise SmokeError(f"{QUESTION} -> {text[-200:]!r}, which does not hold {ANSWER}")
        return f"{usage['prompt_tokens']} prompt tokens, 127 * 31 = {ANSWER}"

    def _repeated(self, text, tokens):
        """The prompt gives its greedy answer again. Requests that share a batch with others' are summed in another order, and a random model has many
        near ties: while other clients are served a different answer is no fault."""
        for _ in range(ASKED):
            before = self._served()
            again = _text(self.client.chat(self._prompt(), tokens))
            if again == text:
                return "the same greedy answer twice"
            others = self._served(now=True) - before - 1
            if others <= 0:
                raise SmokeError(f"the same greedy prompt gave {text[:60]!r}, then {again[:60]!r}")
        return f"greedy answers not compared: other clients' requests share the batches ({others:.0f} meanwhile)"

    def _served(self, now=False):
        """Generation requests that the router has ended; with *now* those it is serving as well."""
        return sum(value for name, labels, value in self.client.metrics()
                   if labels.get("router") in ("pd", "mixed") and (name == ENDED or now and name == OPEN))

    def stream(self):
        tokens = 24 if self.random else 2048
        got = self.client.stream(self._prompt(), tokens)
        if got["errors"]:
            raise SmokeError(f"an error event: {got['errors'][0]}")
        if len(got["usage"]) != 1:
            raise SmokeError(f"{len(got['usage'])} usage chunks, 1 is expected")
        if not got["done"]:
            raise SmokeError("the stream ended without [DONE]")
        if self.random:
            return f"{got['chunks']} chunks, one with usage, [DONE]; {self._repeated(got['text'], tokens)}"
        elif ANSWER not in got["text"].replace(",", "").replace(" ", ""):
            raise SmokeError(f"the streamed answer does not hold {ANSWER}")
        return f"{got['chunks']} chunks, one with usage, [DONE]"

    def cache(self):
        before, hits_before = self._engine_cached(), self._router_hits()
        prompt = f"Ledger {self.nonce}. " + self.prefix
        usage = {}
        for question in ("What happened?", "How was the weather?", "What happened?"):
            usage = self.client.chat(prompt + question, 4)["usage"]
        cached = ((usage.get("prompt_tokens_details") or {}).get("cached_tokens")) or 0
        moved = self._engine_cached() - before
        if cached <= 0 and moved <= 0:
            raise SmokeError("a prefix that was sent three times was never found: cached_tokens 0 in the usage and in the engines' metrics")
        evidence = f"cached_tokens {cached}, engines' counter +{moved:.0f}"
        if self.record["settings"].get("router_policy") != "kv-aware":
            return evidence + "; policy round-robin knows no hits"
        hits = self._router_hits() - hits_before
        if hits <= 0:
            raise SmokeError(f"{evidence}, but the router's kv-aware policy counted no hit: KV events or render do not match")
        return f"{evidence}, router's hit pages +{hits:.0f}"

    def _engine_cached(self):
        total = 0.0
        for engine in self.engines:
            if engine["role"] != "decode":
                total += sum(v for n, _l, v in self.client.metrics(self._base(engine)) if n == "sglang:cached_tokens_total")
        return total

    def _router_hits(self):
        return sum(v for n, _l, v in self.client.metrics() if n == "infera_router_pick_cache_hits_sum")

    def _base(self, engine):
        address = next(host["address"] for host in self.record["hosts"] if host["name"] == engine["host"])
        return f"http://{address}:{engine['ports']['http']}"

    def ranks(self):
        """Hold a stream per rank, see each rank's own gauge or counter move, then see every booking released."""
        role = "decode" if self.pd else "mixed"
        count = sum(e["ranks"] for e in self.engines if e["role"] == role)
        demand = self.pd and self.record["settings"].get("decode_input_demand") == "on"
        threads, faults, seen, lines = [], [], set(), []
        before = self._rank_tokens(role)
        for number in range(count if demand else 2 * count):
            thread = threading.Thread(target=self._hold, args=(number, faults))
            thread.start()
            threads.append(thread)
        while any(thread.is_alive() for thread in threads):
            if demand:
                seen.update(labels["target"] for name, labels, value in self.client.metrics() if name == DEMAND and value > 0)
            time.sleep(0.05)
        ended = time.monotonic()
        if faults:
            raise SmokeError(f"{len(faults)} of {len(threads)} held streams failed: {faults[0]}")
        if demand and len(seen) != count:
            raise SmokeError(f"{count} streams at once reached {len(seen)} of {count} {role} ranks: {', '.join(sorted(seen))}")
        moved = [rank for rank, value in self._rank_tokens(role).items() if value > before.get(rank, 0)]
        lines.append(f"{len(seen) if demand else len(moved)} of {count} {role} ranks served")
        if not demand and len(moved) < count:
            raise SmokeError(f"only {len(moved)} of {count} {role} ranks generated tokens: {', '.join(map(str, sorted(moved)))}")
        if self.pd and self.record["settings"].get("decode_input_demand") != "off":
            lines.append(self._released(ended))
        return "; ".join(lines)

    def _hold(self, number, faults):
        try:
            got = self.client.stream(f"Stream {self.nonce} {number}: " + self.prefix, HOLD_TOKENS, ignore_eos=True)
            if not got["done"] or got["errors"]:
                faults.append(str(got["errors"] or "no [DONE]"))
        except SmokeError as error:
            faults.append(str(error))

    def _rank_tokens(self, role):
        """Generated tokens by (engine, rank), from the engines' own counters."""
        out = {}
        for engine in self.engines:
            if engine["role"] == role:
                for name, labels, value in self.client.metrics(self._base(engine)):
                    if name == "sglang:generation_tokens_total":
                        key = (engine["name"], labels.get("dp_rank", "0"))
                        out[key] = out.get(key, 0) + value
        return out

    def _released(self, ended):
        """Every booking of ours is gone: none is left, or all that are left began after our streams ended (at *ended*) and are other clients'."""
        while True:
            metrics, now = list(self.client.metrics()), time.monotonic()
            held = {labels["target"]: value for name, labels, value in metrics if name == DEMAND}
            if not held:
                raise SmokeError(f"the router exports no {DEMAND}")
            if not any(held.values()):
                return f"demand back at 0 on {len(held)} targets"
            oldest = max((value for name, _labels, value in metrics if name == OLDEST), default=None)
            if oldest is not None and oldest < now - ended - 1:
                return f"our bookings released; other clients hold {sum(held.values()):.0f} on {len(held)} targets, the oldest for {oldest:.1f} s"
            if now - ended > self.wait:
                raise SmokeError(f"demand is not back at 0 after {self.wait} s: {held}, and a booking is {oldest or 0:.0f} s old: a request of "
                                 "another client that runs as long, or a booking that leaked")
            time.sleep(0.5)

    def transfer(self):
        if self.record["flavour"] == "cpu":
            raise NotApplicable("flavour cpu moves KV over TCP by design and runs no speculation")
        lengths = [v for e in self.engines if e["role"] == "decode" for n, _l, v in self.client.metrics(self._base(e)) if n == "sglang:spec_accept_length"]
        if not lengths:
            raise SmokeError("no decode exports sglang:spec_accept_length: speculation does not run")
        worst = max(lengths)
        if worst >= 6:
            raise SmokeError(f"acceptance length {worst} is saturated at the draft's 6 tokens: the model repeats itself")
        for engine in self.engines:
            if engine["env"].get("MC_FORCE_TCP") or "mooncake_tcp" in engine["argv"]:
                raise SmokeError(f"{engine['name']} is set to move KV over TCP")
        # MC_FORCE_HCA makes the engine's start fail without a rail, so a running engine has at least one.
        unforced = [e["name"] for e in self.engines if "MC_FORCE_HCA" not in e["env"]]
        if unforced:
            raise SmokeError(f"{', '.join(unforced)} run without MC_FORCE_HCA, so a fallback to TCP would be silent")
        return f"RDMA forced on {len(self.engines)} engines; acceptance length {min(lengths):.2f} to {worst:.2f}"

    def routes(self):
        answer = self.client.post("/v1/responses", {"model": self.client.model, "input": "Say hello.", "max_output_tokens": 16})
        if not answer.get("output"):
            raise SmokeError(f"/v1/responses: no output: {str(answer)[:200]}")
        message = self.client.post("/v1/messages", {"model": self.client.model, "max_tokens": 16, "messages": [{"role": "user", "content": "Say hello."}]})
        if message.get("type") != "message":
            raise SmokeError(f"/v1/messages: no message: {str(message)[:200]}")
        return "/v1/responses and /v1/messages answer"


def _text(body):
    message = body["choices"][0]["message"]
    return (message.get("reasoning_content") or "") + (message.get("content") or "")
