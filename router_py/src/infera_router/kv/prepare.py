"""What the router learns about a request before it picks: the prompt's size, and the pages that a KV cache may hold.

Small or well-known prompts are prepared at once; anything that may take longer than 2 ms goes to a thread. A request never fails
here: what cannot be known is None, with the reason in `Prepared.error`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Raw

from . import chat, outline
from .errors import Unknown
from .held import held, members_held
from .ids import Ids
from .pages import Pages, salt_seed
from .prefix import Encoded, Entry, IncrementalEncoder, PrefixCache
from .renderer import Renderer, as_ids, prompt_of, split_prompt
from .selfcheck import SelfCheck
from .subscriber import Subscriber
from .text import Text
from .tokenizer import Tokenizer, check_folder
from .tokens import choices
from .view import View

if TYPE_CHECKING:
    from infera_router.fleet.pool import Pool, Snapshot

log = logging.getLogger(__name__)

CACHE_BYTES = 256 * 1024 * 1024
THREADS = 2
# Requests waiting for a thread; beyond it a request is routed on load rather than held up.
QUEUE_LIMIT = 256
# A request is prepared on the event loop where this much time suffices by the estimates below; otherwise in a thread.
INLINE_COST_S = 0.001
# The same once the text is there, which may have more characters than the body's new bytes.
SLOW_COST_S = 0.0015
# Seconds a new byte of a body takes: parsing, rendering and gigatoken; the same with tokenizers; and per page for hashing (measured, rounded up).
BYTE_FAST_S, BYTE_SLOW_S, PAGE_S = 20e-9, 500e-9, 0.5e-6
PAGE_COPY_S = 20e-9
BYTES_PER_TOKEN = 3
# New objects in a body, which parsing and the template walk through one by one at about 4 us each.
INLINE_OBJECTS = 200
_CHAT = "/v1/chat/completions"
_NOTHING = Text(())
Members = Mapping[str, Raw] | None
_CHAT_LIKE = (_CHAT, "/v1/responses", "/v1/messages")


@dataclass(frozen=True, slots=True)
class Prepared:
    """`tokens`: prompt tokens of all prompts in the body × n (the demand's q). `prompt_tokens`: what the reply's usage should say.

    `pages`: of the first prompt; None = route on load. `error`: why something is unknown, one word.
    """

    tokens: int | None = None
    pages: Pages | None = None
    prompt_tokens: int | None = None
    error: str | None = None


class Slow(Exception):
    """Not for the event loop: what looked known is not."""


class Builder:
    """Bodies to Prepared, with the conversations seen so far. Thread-safe and synchronous."""

    def __init__(self, tokenizer: Tokenizer, view: View | None, cache_bytes: int = CACHE_BYTES, served: Callable[[], set[str]] = set):
        self.renderer = Renderer(tokenizer)
        self.tokenizer = tokenizer
        self.cache = PrefixCache(cache_bytes)
        self._encoder = IncrementalEncoder(tokenizer.encode, tokenizer.cuts)
        self._view = view
        self._served = served
        self.tokens_total = 0
        self.tokens_reused = 0

    def known(self, route: str | None, body: bytes) -> Entry | None:
        """The known conversation that the body continues."""
        return self.cache.by_body(body) if route == _CHAT else None

    def quick(self, body: bytes, base: Entry | None) -> bool:
        """Whether `build` will surely take less than 2 ms."""
        known = len(base.stem.raw) if base is not None else 0
        cost = self._cost(len(body) - known, len(body) - known)
        if base is not None:
            cost += base.cost_s + PAGE_S * _unmade(base)
        return cost < INLINE_COST_S and body.count(b"{", known) <= INLINE_OBJECTS

    def _cost(self, encoded: int, hashed: int) -> float:
        """Seconds, estimated, for so many bytes or characters to be tokenized and to be hashed."""
        cost = (BYTE_FAST_S if self.tokenizer.fast else BYTE_SLOW_S) * encoded
        if self._view is not None:
            cost += hashed * sum(PAGE_S / (BYTES_PER_TOKEN * form.page_size) for form in self._view.forms())
        return cost

    def build(self, route: str, body: bytes, base: Entry | None = None, polite: bool = True, members: Members = None) -> Prepared:
        """Raises Unknown. `members`: the body's, unread, where they are known.

        `polite`: in a thread, give way to the event loop now and then; else raise Slow for what is too long for the loop itself.
        """
        if route == _CHAT:
            return self._chat(body, base, polite, members)
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise Unknown("json") from None
        if not isinstance(fields, dict):
            raise Unknown("json")
        if route in _CHAT_LIKE:
            made = self.renderer.chat(self.renderer.fields(route, fields))
            owner = fields if route == "/v1/responses" else {"model": fields.get("model")}
            return self._single(owner, made, None, polite)
        return self._completion(fields, polite)

    def _chat(self, body: bytes, base: Entry | None, polite: bool, members: Members) -> Prepared:
        found = outline.resume(body, base.stem) if base is not None else None
        as_list = self.renderer.as_list if self.tokenizer.template is not None else False
        if found is not None:
            parsed, stem = found
            fresh = [chat.template_message(message, as_list) for message in parsed.messages]
            messages, known = [*base.messages, *fresh], base.parsed
        else:
            parsed, stem = outline.parse(body, members)
            fresh = messages = [chat.template_message(message, as_list) for message in parsed.messages]
            known = held([stem.head]) if stem is not None else 0
            base = None
        fields = parsed.fields
        given = fields.get("input_ids")
        if given is not None:
            return self._result(fields, [self._pages(fields, as_ids(given), polite)])
        if not messages:
            raise Unknown("invalid", "messages")
        made = self.renderer.chat(fields, messages)
        kept = None
        if stem is not None:
            kept = Entry(_NOTHING, Ids(), array("Q"), array("Q"), stem=stem, messages=messages, parsed=known + members_held(fresh) + 8 * len(fresh))
        return self._single(fields, made, kept, polite, base)

    def _single(self, fields: dict, made: chat.Chat, kept: Entry | None, polite: bool, base: Entry | None = None) -> Prepared:
        started = time.thread_time()
        text = self.renderer.text(made)
        cost = time.thread_time() - started
        pages, _ = self._text_pages(fields, text, made.prefix, kept, base, cost, polite)
        return self._result(fields, [pages])

    def _text_pages(self, fields: dict, text: Text, prefix: str | None, kept: Entry | None, base: Entry | None, cost: float,
                    polite: bool) -> tuple[Pages, Encoded]:
        """The pages of a text, made from the last cut that a known text shares with it, and remembered."""
        parent = base
        shared = self._encoder.shared_chars(text, base) if base is not None else 0
        if not shared:
            base = self.cache.by_text(text)
            shared = self._encoder.shared_chars(text, base) if base is not None else 0
        if not polite:
            # A known body may end with tools, which come first in the prompt, or with another salt.
            seed = salt_seed(_single_of(fields.get("cache_salt"), 0))
            chained = base is not None and self._view is not None and all((form, seed) in base.chains for form in self._view.forms())
            cost_s = self._cost(len(text) - shared, len(text) - shared if chained else len(text))
            if cost_s + (PAGE_S * _unmade(base) if chained else 0.0) > SLOW_COST_S:
                raise Slow
        encoded = self._encoder.encode(text, base, shared)
        self.tokens_total += len(encoded.ids)
        self.tokens_reused += encoded.shared
        ids = encoded.ids
        if prefix:
            ids = Ids((*ids.parts, self.tokenizer.encode_prefix(prefix)))
        pages = self._pages(fields, ids, polite, base, encoded.shared)
        entry = kept or Entry(_NOTHING, Ids(), array("Q"), array("Q"))
        if encoded.mark_chars:
            # Ids beyond the last mark are kept with the rest: they are never read, and a copy would cost more.
            entry.text, entry.ids = text, encoded.ids
            entry.mark_chars, entry.mark_tokens = encoded.mark_chars, encoded.mark_tokens
            entry.chains = pages.chains
            # What the next turn spends on the known part: the template walks it again, and the ids of its pages are copied.
            entry.cost_s = cost + PAGE_COPY_S * sum(len(chain) for chain in pages.chains.values())
            self.cache.add(entry, parent, shared if base is parent else 0)
        return pages, encoded

    def _pages(self, fields: dict, ids: Ids | array, polite: bool, base: Entry | None = None, shared: int = 0, index: int = 0) -> Pages:
        salt = _single_of(fields.get("cache_salt"), index)
        pages = Pages(ids, salt_seed(salt), self._credit(fields, index), base.chains if base is not None else None, shared)
        if self._view is not None:
            self._view.hash_ahead(pages, polite)
        return pages

    def _credit(self, fields: dict, index: int) -> bool:
        """Whether events can tell which cached pages this request may use."""
        if _single_of(fields.get("extra_key"), index) is not None or _single_of(fields.get("lora_path"), index) is not None:
            return False
        model = fields.get("model")
        # "base:adapter" names a LoRA adapter, unless the served name itself has a colon.
        return not (isinstance(model, str) and ":" in model) or model in self._served()

    def _completion(self, fields: dict, polite: bool) -> Prepared:
        made = []
        for index, prompt in enumerate(split_prompt(prompt_of(fields))):
            if isinstance(prompt, str) and not self.tokenizer.adds_specials:
                pages, _ = self._text_pages(fields, Text((prompt,)), None, None, None, 0.0, polite)
            else:
                ids = self.tokenizer.encode_raw(prompt) if isinstance(prompt, str) else as_ids(prompt)
                pages = self._pages(fields, ids, polite, index=index)
            made.append(pages)
        prepared = self._result(fields, made)
        if len(made) > 1 and "prompt" not in fields:
            # /generate answers each prompt of a list with its own size.
            return Prepared(prepared.tokens, prepared.pages)
        return prepared

    def _result(self, fields: dict, made: list[Pages]) -> Prepared:
        total = sum(pages.tokens for pages in made)
        sampling = fields.get("sampling_params")
        n = choices(sampling if isinstance(sampling, dict) and "n" not in fields else fields)
        return Prepared(total * n, made[0] if self._view is not None else None, total)


def _at_once(builder: Builder, route: str, body: bytes, known: Entry | None, members: Members) -> Prepared | None:
    """The facts where they can be had without keeping the event loop waiting. Raises Unknown."""
    if not builder.quick(body, known):
        return None
    try:
        return builder.build(route, body, known, False, members)
    except Slow:
        return None


def _unmade(base: Entry) -> int:
    """Pages of a known prompt that nobody has looked at yet: whoever goes on from it hashes them."""
    return sum(len(chain) - chain.made for chain in base.chains.values())


def _single_of(value: Any, index: int) -> str | None:
    """One prompt's share of a field that is a string or a list with one for each prompt."""
    if isinstance(value, list):
        value = value[index] if index < len(value) else None
    if value is None or isinstance(value, str):
        return value
    raise Unknown("invalid", "namespace")


class Preparer:
    """One router process's renderer, view and checks. Belongs to the event loop; `facts` is the request path.

    The tokenizer is loaded in a thread: until it is there requests are routed on load (`error` "loading"). With another policy than
    kv-aware only sizes are made, and no events are followed. `executor` and `tokenizer` are for tests.
    """

    def __init__(self, settings: Any, pool: Pool, *, executor: ThreadPoolExecutor | None = None, tokenizer: Tokenizer | None = None,
                 cache_bytes: int = CACHE_BYTES):
        check_folder(settings.router_tokenizer_path)
        self.view = View()
        self.check = SelfCheck()
        self.errors: Counter = Counter()
        self.prepared = 0
        self._pool = pool
        self._kv_aware = settings.policy.router_policy == "kv-aware"
        self._cache_bytes = cache_bytes
        self._executor = executor
        self._waiting = 0
        self.builder: Builder | None = None
        self.loading = tokenizer is None
        self.subscriber: Subscriber | None = None
        self._unsubscribe = pool.subscribe(self._fleet_changed)
        if self._kv_aware:
            self.subscriber = Subscriber(self.view)
            self.subscriber.update(None, pool.snapshot)
        if tokenizer is not None:
            self._adopt(tokenizer)
        else:
            threading.Thread(target=self._load, args=(settings.router_tokenizer_path,), name="tokenizer-load", daemon=True).start()

    def _load(self, path: str) -> None:
        started = time.monotonic()
        try:
            tokenizer = Tokenizer(path)
        except Exception as exc:
            log.error("%s; requests are routed on load", exc)
            self.loading = False
            return
        self._adopt(tokenizer)
        self.loading = False
        log.info("tokenizer of %s loaded in %.2f s: %s, %s", path, time.monotonic() - started,
                 "gigatoken" if tokenizer.fast else "tokenizers",
                 f"prompts are cut after {len(tokenizer.cuts)} tokens" if tokenizer.cuts else "no safe cuts, prompts are encoded in full")

    def _adopt(self, tokenizer: Tokenizer) -> None:
        # A thread that computes must not keep the event loop waiting for the interpreter's default of 5 ms.
        sys.setswitchinterval(min(sys.getswitchinterval(), 0.001))
        if self._executor is None:
            # Starting a thread waits for it, which is not for the first requests to do.
            self._executor = ThreadPoolExecutor(THREADS, "kv-prepare")
            for _ in range(THREADS):
                self._executor.submit(time.sleep, 0.01)
        self.builder = Builder(tokenizer, self.view if self._kv_aware else None, self._cache_bytes, self._served_names)

    def _served_names(self) -> set[str]:
        return {record.model_name for record in self._pool.snapshot.workers.values()}

    def _fleet_changed(self, old: Snapshot, new: Snapshot) -> None:
        for worker_id, record in old.workers.items():
            now = new.workers.get(worker_id)
            if now is None or now.generation != record.generation or now.started_at != record.started_at:
                self.check.forget(worker_id)
        if self.subscriber is not None:
            self.subscriber.update(old, new)

    def known(self, route: str | None, body: bytes) -> Entry | None:
        """The conversation that a chat body continues: its bytes up to `stem.raw` were read before."""
        return self.builder.known(route, body) if self.builder is not None else None

    async def facts(self, route: str, body: bytes, known: Entry | None = None, members: Members = None) -> Prepared:
        """The facts of one request. Never raises but for cancellation. `route`: the path, as "/v1/chat/completions"; `known`: what `known` said; `members`:
        the body's, unread, where they are known."""
        builder = self.builder
        if builder is None:
            return self._unknown("loading")
        try:
            prepared = _at_once(builder, route, body, known, members)
            if prepared is None:
                if self._waiting >= QUEUE_LIMIT:
                    return self._unknown("busy")
                prepared = await self._in_thread(builder, route, body, known, members)
        except Unknown as unknown:
            return self._unknown(unknown.reason)
        except Exception:
            log.exception("a request could not be prepared; it is routed on load")
            return self._unknown("internal")
        self.prepared += 1
        return prepared

    async def _in_thread(self, builder: Builder, route: str, body: bytes, base: Entry | None, members: Members) -> Prepared:
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, builder.build, route, body, base, True, members)
        finally:
            self._waiting -= 1

    def _unknown(self, reason: str) -> Prepared:
        self.errors[reason] += 1
        return Prepared(error=reason)

    def close(self) -> None:
        """End the threads. Requests that still wait are cancelled by their own end."""
        self._unsubscribe()
        if self.subscriber is not None:
            self.subscriber.close()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
