#!/usr/bin/env python3
"""What the router's work on prompts costs: multi-turn chats of about 100k tokens, cold and warm. Prints figures, asserts nothing.

usage: bench/kv/run.py [--tokenizer DIR] [--characters N] [--turns N] [--sessions N] [--page-size N ...] [--targets N]

Needs the router's packages; with gigatoken installed both tokenizers are measured. Without --tokenizer a small one is trained first (30 s).
CPU times are of the process and exclude other work on the machine; take the medians, and run it on an idle core (taskset -c 1).
"""
from __future__ import annotations

import argparse
import json
import pathlib
import resource
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "router_py" / "src"), str(HERE.parent)]

import workload  # noqa: E402
from infera_router.kv import events, view  # noqa: E402
from infera_router.kv.pages import PageForm  # noqa: E402
from infera_router.kv.prepare import Builder  # noqa: E402
from infera_router.kv.tokenizer import Tokenizer  # noqa: E402

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}<|assistant|>\n")


def model_folder(base: pathlib.Path, text: str) -> pathlib.Path:
    """A byte-level BPE of 32,000 entries with chat tokens, and a GLM-like template."""
    from tokenizers import AddedToken, Tokenizer

    workload.train_tokenizer(str(base), text)
    made = Tokenizer.from_file(str(base / "tokenizer.json"))
    made.add_special_tokens([AddedToken(t, special=True) for t in ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>")])
    made.save(str(base / "tokenizer.json"))
    (base / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (base / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return base


def sessions(text: str, count: int, characters: int, turns: int) -> list[list[bytes]]:
    """Bodies of each session's turns: the first prompt has `characters`, each later turn adds about 2k tokens."""
    out = []
    for number in range(count):
        at = number * (characters + turns * workload.TURN_CHARS) % max(1, len(text) - characters - turns * workload.TURN_CHARS)
        messages = [{"role": "system", "content": text[:workload.SYSTEM_CHARS]}]
        first = text[at:at + characters]
        for start in range(0, len(first), workload.MSG_CHARS):
            messages.append({"role": ("user", "assistant")[(start // workload.MSG_CHARS) % 2], "content": first[start:start + workload.MSG_CHARS]})
        if messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": "Go on."})
        bodies = []
        for turn in range(turns):
            bodies.append(json.dumps({"model": "m", "messages": messages, "stream": True, "max_tokens": 4}).encode())
            more = text[at + characters + turn * workload.TURN_CHARS:][:workload.TURN_CHARS]
            messages = [*messages, {"role": "assistant", "content": more[:2000]}, {"role": "user", "content": f"{turn} {more[2000:]}"}]
        out.append(bodies)
    return out


def milliseconds(values: list[float]) -> str:
    return f"median {statistics.median(values) * 1e3:7.2f} ms, worst {max(values) * 1e3:7.2f} ms"


def measure(tokenizer: Tokenizer, name: str, talks: list[list[bytes]], page_size: int) -> None:
    seen = view.View()
    seen.open("w", PageForm(page_size))
    builder = Builder(tokenizer, seen)
    cold, warm, inline, tokens = [], [], 0, 0
    for bodies in talks:
        for turn, body in enumerate(bodies):
            began = time.process_time()
            base = builder.known(CHAT, body)
            at_once = builder.quick(body, base)
            prepared = builder.build(CHAT, body, base)
            (warm if turn else cold).append(time.process_time() - began)
            inline += bool(turn and at_once)
            tokens = prepared.tokens
    print(f"{name:<11} pages of {page_size:>2}: cold {milliseconds(cold)}; warm {milliseconds(warm)}; {inline} of {len(warm)} warm turns on the "
          f"event loop itself; last prompt {tokens} tokens, {len(bodies[-1])} bytes; cache {builder.cache.bytes / 1e6:.1f} MB")


def measure_view(tokenizer: Tokenizer, body: bytes, page_size: int, targets: int) -> None:
    form = PageForm(page_size)
    seen = view.View()
    ranks = [seen.open(f"w{number}", form) for number in range(targets)]
    pages = Builder(tokenizer, seen).build(CHAT, body).pages
    hashes = list(pages.hashes(form))
    began = time.process_time()
    for rank in ranks:
        rank.shown = True
        rank.apply([events.Stored([page], None, events.GPU, page_size, False, False) for page in hashes])
    ingest = (time.process_time() - began) / (targets * len(hashes))
    times = []
    for _ in range(20):
        began = time.process_time()
        found = [seen.overlap(f"w{number}", pages) for number in range(targets)]
        times.append(time.process_time() - began)
    assert all(one.device == len(hashes) for one in found)
    print(f"view, pages of {page_size:>2}: {len(hashes)} pages held by each of {targets} targets; a pick asks them all in {milliseconds(times)}; "
          f"an event is taken in {ingest * 1e6:.2f} us")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="DIR", help="a model's folder; default: one is trained")
    parser.add_argument("--characters", type=int, default=workload.LONG_BASE_CHARS, help="of the first prompt (default: %(default)s, about 100k tokens)")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--page-size", type=int, nargs="+", default=[64, 1])
    parser.add_argument("--targets", type=int, default=8)
    args = parser.parse_args()
    text = workload.corpus()
    with tempfile.TemporaryDirectory() as folder:
        model = args.tokenizer or model_folder(pathlib.Path(folder), text)
        talks = sessions(text, args.sessions, args.characters, args.turns)
        loaded = [("tokenizers", Tokenizer(model, fast=False))]
        began = time.process_time()
        fast = Tokenizer(model)
        if fast.fast:
            print(f"gigatoken proven equal on this tokenizer and loaded in {time.process_time() - began:.2f} s CPU")
            loaded.append(("gigatoken", fast))
        else:
            print("gigatoken is not installed or not equal on this tokenizer: tokenizers alone is measured")
        for page_size in args.page_size:
            for name, tokenizer in loaded:
                measure(tokenizer, name, talks if name == "gigatoken" else talks[:1], page_size)
            measure_view(fast, talks[0][0], page_size, args.targets)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
