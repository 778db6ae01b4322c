"""Emulated prefills and one emulated decode with ranks in lock-step, in real time, behind SGLang's HTTP and PD surface.

Both legs of a request meet by bootstrap_room; the decode gives it KV on the rank that X-Data-Parallel-Rank names, the prefill serves it, and from
the next step on it generates. No model runs: the text is filler, the times are those of the parameters divided by `speed`.
"""
from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable

from . import surface
from .figures import Record
from .parameters import Case, Parameters
from .prefix_cache import PrefixCache
from .ranks import Job, Ranks
from .trace import Turn
from .web import Exchange, serve

GENERATE = ("/v1/chat/completions", "/v1/completions")
LONE_LEG_S = 300.0          # SGLang's bootstrap and waiting timeouts
PAGE = 64                   # GLM-5.2's page size
SERVED_KEPT = 100_000       # requests whose line /emulator/requests shows
CATCH_UP_S = 1.0            # what a busy machine may delay the steps by before they are given up catching up


@dataclass(slots=True)
class Leg:
    """One leg of a request, as it arrived."""

    exchange: Exchange
    body: dict[str, Any]
    rank: int | None
    prompt: int = 0
    cached: int = 0
    job: Job | None = None
    partner: Leg | None = None
    sent: int = 0               # whole tokens streamed so far
    head: bytes = b""


class Deployment:
    """ids: body and route → prompt token ids, None without a tokenizer (then words count as tokens and nothing is cached).

    scale: prompt tokens on the wire per token of the emulated KV, so that a 100k-token prompt can be sent as 1,000 words.
    interval: tokens between two frames of a stream (SGLang's --stream-interval).
    """

    def __init__(self, parameters: Parameters, case: Case, model: str, speed: float = 1.0, scale: float = 1.0,
                 ids: Callable[[str, dict], Any] | None = None, caches: list[PrefixCache] | None = None, interval: int = 1):
        self.p, self.case, self.model, self.speed, self.scale, self.ids = parameters, case, model, speed, scale, ids
        self.caches = caches
        self.interval = interval
        self.ranks = Ranks(parameters, case.ranks, case.kv_capacity_tokens)
        self.record = Record()
        self.behind = 0.0           # seconds that the ends of steps came late, summed up: this machine was busy
        self.errors: list[str] = []
        self.served: deque[tuple] = deque(maxlen=SERVED_KEPT)
        self._rooms: dict[int, tuple[str, Leg]] = {}
        self._prefilling: dict[int, Leg] = {}           # id of the job → decode leg whose prefill is under way
        self._prefill_busy = [0] * case.prefills
        self._ready: list[Leg] = []
        self._wake = asyncio.Event()
        self._legs: dict[int, Leg] = {}                 # id of the job → decode leg
        self._rids: dict[str, Leg] = {}
        self._servers: list[asyncio.Server] = []
        self._task: asyncio.Task | None = None
        self._turn = 0
        self.counters = {"prompt_tokens_total": 0, "generation_tokens_total": 0, "cached_tokens_total": 0}
        self.ports: list[int] = []                      # prefills first, the decode last

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self, host: str, ports: list[int]) -> None:
        """Listen on the given ports (0 = any): one for each prefill, then the decode's."""
        for index, port in enumerate(ports):
            role = "decode" if index == self.case.prefills else "prefill"
            server, bound = await serve(lambda x, i=index, r=role: self._handle(r, i, x), host, port)
            self._servers.append(server)
            self.ports.append(bound)
        self._task = asyncio.get_running_loop().create_task(self._steps())

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for cache in self.caches or ():
            if cache.publisher is not None:
                cache.publisher.close()

    def reset(self) -> None:
        """Begin a new record, for the measured part of a run."""
        self.record = Record()
        self.behind = 0.0

    # -- requests ----------------------------------------------------------------------------------------------------

    def _handle(self, role: str, index: int, x: Exchange) -> None:
        path = x.path.partition("?")[0]
        if x.method == "POST" and path in GENERATE:
            self._generate(role, index, path, x)
        elif path in ("/health", "/health_generate", "/ready"):
            x.reply(b"", kind="text/plain")
        elif path in ("/server_info", "/get_server_info"):
            ranks = self.case.ranks if role == "decode" else 1
            x.reply(surface.server_info(role, ranks, PAGE, self.case.kv_capacity_tokens, self.ports[index] + 300, None))
        elif path in ("/model_info", "/get_model_info"):
            x.reply({"model_path": self.model, "is_generation": True})
        elif path == "/v1/models":
            x.reply({"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "infera-emulator"}]})
        elif path == "/v1/loads":
            x.reply(self._loads(role, index))
        elif path == "/metrics":
            x.reply(surface.metrics(self.model, role, self._loads(role, index), self.counters, self.p.tokens_per_step), kind="text/plain; version=0.0.4")
        elif path == "/flush_cache":
            if role == "prefill" and self.caches:
                self.caches[index].flush()
            x.reply(b"Cache flushed.\n", kind="text/plain")
        elif path == "/abort_request":
            self._abort(str(x.json().get("rid")))
            x.reply({})
        elif path == "/emulator/record" and role == "decode":
            r = self.record
            x.reply({"busiest": r.busiest, "busiest_tokens": r.busiest_tokens, "steps": r.steps, "behind": self.behind, "retracted": self.ranks.retracted,
                     "errors": self.errors})
        elif path == "/emulator/requests" and role == "decode":
            x.reply({"fields": ["x-request-id", "prefill", "rank", "prompt_tokens", "cached_tokens", "output_tokens"], "requests": list(self.served)})
        elif path == "/emulator/reset" and role == "decode":
            self.reset()
            x.reply({})
        else:
            x.reply({"error": {"message": f"no route {path}", "code": 404}}, 404)

    def _loads(self, role: str, index: int) -> dict[str, Any]:
        if role == "decode":
            prefilling = [0] * self.case.ranks
            for leg in [*self._prefilling.values(), *self._ready]:
                prefilling[leg.job.rank] += 1
            return surface.decode_loads(self.ranks, prefilling)
        waiting = sum(1 for side, _leg in self._rooms.values() if side == "prefill")
        return surface.prefill_loads(waiting, self._prefill_busy[index])

    def _generate(self, role: str, index: int, path: str, x: Exchange) -> None:
        body = x.json()
        room, host, port = body.get("bootstrap_room"), body.get("bootstrap_host"), body.get("bootstrap_port")
        if not isinstance(room, int):
            raise ValueError("Disaggregated request received without bootstrap room id")
        if not isinstance(host, str) or port not in [p + 300 for p in self.ports[:self.case.prefills]]:
            raise ValueError(f"bootstrap address {host}:{port} is none of this deployment's prefills")
        rank = x.headers.get("x-data-parallel-rank", body.get("routed_dp_rank"))
        rank = None if rank is None else int(rank)
        if role == "decode":
            if self.case.ranks > 1 and rank is None:
                raise ValueError("no X-Data-Parallel-Rank: the router has to pick the rank")
            if rank is not None and not 0 <= rank < self.case.ranks:
                raise ValueError(f"routed_dp_rank={rank} out of range [0, {self.case.ranks})")
        leg = Leg(x, body, rank)
        if role == "prefill":
            leg.sent = index            # which prefill it is
        x.gone = lambda: self._gone(role, leg)
        if isinstance(body.get("rid"), str):
            self._rids.setdefault(body["rid"], leg)
        other = self._rooms.pop(room, None)
        if other is None or other[0] == role:
            self._rooms[room] = (role, leg)
            asyncio.get_running_loop().call_later(LONE_LEG_S / self.speed, self._lone, room, leg)
            return
        prefill, decode = (leg, other[1]) if role == "prefill" else (other[1], leg)
        prefill.partner, decode.partner = decode, prefill
        self._begin(path, prefill, decode)

    def _begin(self, path: str, prefill: Leg, decode: Leg) -> None:
        """Both legs are there."""
        body = decode.body
        ids = self.ids(path, body) if self.ids is not None else None
        decode.prompt = len(ids) if ids is not None else words(body)
        context = max(int(decode.prompt / self.scale), 1)
        cached = self.caches[prefill.sent].take(ids) if self.caches and ids is not None else 0
        new = body.get("emulated_new_tokens")
        new = min(int(new), context) if isinstance(new, int) else max(int((decode.prompt - cached) / self.scale), 1)
        decode.cached = cached
        output = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        self._turn += 1
        job = Job(Turn(0, self._turn, 0.0, context, new, max(int(output), 1)), decode.rank or 0, time.monotonic(), prefill.sent)
        decode.job = job
        self.served.append((decode.exchange.headers.get("x-request-id"), prefill.sent, job.rank, decode.prompt, cached, job.turn.output))
        self._legs[id(job)] = decode
        self.counters["prompt_tokens_total"] += decode.prompt
        self.counters["cached_tokens_total"] += cached
        if self.ranks.admit(job):
            self._prefill(decode)

    def _prefill(self, decode: Leg) -> None:
        job = decode.job
        self._prefilling[id(job)] = decode
        self._prefill_busy[job.tag] += 1
        seconds = self.p.prefill_base_s + job.turn.new / self.p.prefill_tokens_per_s
        asyncio.get_running_loop().call_later(seconds / self.speed, self._prefilled, decode)

    def _prefilled(self, decode: Leg) -> None:
        job = decode.job
        if self._prefilling.pop(id(job), None) is None:
            return                      # dropped meanwhile
        self._prefill_busy[job.tag] -= 1
        prefill = decode.partner
        if not prefill.exchange.done:
            prefill.exchange.reply(answer(self.model, prefill.body, decode.prompt, decode.cached, 1))
        self._ready.append(decode)
        self._wake.set()

    # -- ends --------------------------------------------------------------------------------------------------------

    def _lone(self, room: int, leg: Leg) -> None:
        if self._rooms.get(room, (None, None))[1] is leg:
            del self._rooms[room]
            self._fail(leg, "the other leg never came")

    def _fail(self, leg: Leg, why: str) -> None:
        if not leg.exchange.done:
            if leg.head:
                leg.exchange.chunk(b"data: " + json.dumps({"error": {"message": why, "code": 500}}).encode() + b"\n\ndata: [DONE]\n\n")
                leg.exchange.end_stream()
            else:
                leg.exchange.reply({"error": {"message": why, "code": 500}}, 500)

    def _gone(self, role: str, leg: Leg) -> None:
        """A client closed before its reply was complete: SGLang aborts the request."""
        for room, (_side, waiting) in list(self._rooms.items()):
            if waiting is leg:
                del self._rooms[room]
        decode = leg if role == "decode" else leg.partner
        if decode is not None and decode.job is not None:
            self._drop(decode)
            other = leg.partner
            if other is not None:
                self._fail(other, "aborted")

    def _abort(self, rid: str) -> None:
        leg = self._rids.pop(rid, None)
        if leg is not None and not leg.exchange.done:
            role = "decode" if leg.job is not None else "prefill"
            self._fail(leg, "aborted")
            self._gone(role, leg)

    def _drop(self, decode: Leg) -> None:
        job = decode.job
        self._rids.pop(decode.body.get("rid"), None)
        self._legs.pop(id(job), None)
        if self._prefilling.pop(id(job), None) is not None:
            self._prefill_busy[job.tag] -= 1
        if decode in self._ready:
            self._ready.remove(decode)
        self.ranks.drop(job)
        self._admit()

    def _admit(self) -> None:
        for job in self.ranks.admitted():
            leg = self._legs.get(id(job))
            if leg is None:
                self.ranks.drop(job)
            elif job.generated:
                self._ready.append(leg)
                self._wake.set()
            else:
                self._prefill(leg)

    # -- steps -------------------------------------------------------------------------------------------------------

    async def _steps(self) -> None:
        ranks, loop = self.ranks, asyncio.get_running_loop()
        boundary = loop.time()
        while True:
            for leg in self._ready:
                ranks.join(leg.job)
                if not leg.job.generated:
                    self._send(leg)
            self._ready.clear()
            ranks.make_room()
            if not any(ranks.running):
                self._wake.clear()
                if not self._ready:
                    await self._wake.wait()
                boundary = loop.time()
                continue
            cost = ranks.cost() / self.speed
            self.record.step(ranks.busiest, ranks.busiest_tokens)
            boundary += cost
            behind = loop.time() - boundary
            if behind > CATCH_UP_S:
                boundary = loop.time()
            await asyncio.sleep(max(0.0, -behind))
            self.behind += loop.time() - boundary
            ended = ranks.step()
            for jobs in ranks.running:
                for job in jobs:
                    self._send(self._legs[id(job)])
            for job in ended:
                leg = self._legs.pop(id(job), None)
                if leg is not None:
                    self._finish(leg)
            self._admit()

    def _send(self, leg: Leg) -> None:
        """Stream the tokens made since the last time."""
        if leg.body.get("stream") is not True:
            return
        if not leg.head:
            chat = "messages" in leg.body
            leg.exchange.start_stream()
            frame = {"id": f"emulated-{leg.job.turn.number}", "object": "chat.completion.chunk" if chat else "text_completion", "created": 0,
                     "model": self.model}
            leg.head = json.dumps(frame)[:-1].encode() + (b', "choices": [{"index": 0, "finish_reason": null, '
                                                           + (b'"delta": {"content": "' if chat else b'"text": "'))
        made = int(leg.job.made)
        if made > leg.sent and (made - leg.sent >= self.interval or not leg.sent or made >= leg.job.turn.output):
            tail = b'"}}]}\n\n' if "messages" in leg.body else b'"}]}\n\n'
            leg.exchange.chunk(b"data: " + leg.head + b" tok" * (made - leg.sent) + tail)
            leg.sent = made

    def _finish(self, leg: Leg) -> None:
        self._rids.pop(leg.body.get("rid"), None)
        output = leg.job.turn.output
        self.counters["generation_tokens_total"] += output
        if leg.body.get("stream") is not True:
            leg.exchange.reply(answer(self.model, leg.body, leg.prompt, leg.cached, output))
            return
        self._send(leg)
        whole = answer(self.model, leg.body, leg.prompt, leg.cached, output, stream=True)
        usage = whole.pop("usage")
        data = b"data: " + json.dumps(whole).encode() + b"\n\n"
        if (leg.body.get("stream_options") or {}).get("include_usage"):
            data += b"data: " + json.dumps({**whole, "choices": [], "usage": usage}).encode() + b"\n\n"
        leg.exchange.chunk(data + b"data: [DONE]\n\n")
        leg.exchange.end_stream()


def words(body: dict[str, Any]) -> int:
    """Words of a chat or a text prompt; the length of a prompt of token ids."""
    if "messages" in body:
        return sum(len(str(m.get("content", "")).split()) for m in body["messages"] if isinstance(m, dict))
    prompt = body.get("prompt", "")
    return len(prompt.split()) if isinstance(prompt, str) else len(prompt)


def answer(model: str, body: dict[str, Any], prompt: int, cached: int, output: int, stream: bool = False) -> dict[str, Any]:
    """A whole answer; stream: its last frame, which has no text."""
    text = "" if stream else " tok" * output
    if "messages" in body:
        message = {"delta": {}} if stream else {"message": {"role": "assistant", "content": text}}
        kind = "chat.completion.chunk" if stream else "chat.completion"
    else:
        message, kind = {"text": text}, "text_completion"
    return {"id": "emulated", "object": kind, "created": 0, "model": model, "choices": [{"index": 0, "finish_reason": "length", **message}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
                      "prompt_tokens_details": {"cached_tokens": cached}}}
