"""Load on a deployment while something is done to it: streams that have to end properly, and new connections at a steady rate."""
import asyncio
import collections
import json
import threading
import time

import requests
from fleet.deployment import PROMPT


class Streams:
    """*lanes* clients, each a session of its own, stream one completion after the other. A context manager.

    ``outcomes`` counts ok, 503 (with Retry-After, before any byte) and everything else by what it was.
    """

    def __init__(self, url, lanes=3, tokens=24):
        self.url, self.lanes, self.tokens = url, lanes, tokens
        self.outcomes, self.longest = collections.Counter(), 0.0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._lane, args=(n,), daemon=True) for n in range(lanes)]

    @property
    def failed(self):
        return {what: count for what, count in self.outcomes.items() if what != "ok"}

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(180)
        self.outcomes["never ended"] += sum(thread.is_alive() for thread in self._threads)
        self.outcomes = +self.outcomes

    def _lane(self, number):
        turn = 0
        while not self._stop.is_set():
            turn += 1
            started = time.monotonic()
            what = self._one(number, turn)
            self.outcomes[what] += 1
            self.longest = max(self.longest, time.monotonic() - started)
            if what != "ok":
                time.sleep(0.2)

    def _one(self, number, turn):
        messages = [{"role": "user", "content": f"Lane {number}, turn {turn}. {PROMPT[0]['content']}"}]
        body = {"model": "tiny", "messages": messages, "max_tokens": self.tokens, "stream": True, "ignore_eos": True}
        try:
            with requests.post(self.url + "/v1/chat/completions", json=body, stream=True, timeout=(5, 170),
                               headers={"X-Session-ID": f"lane-{number}"}) as answer:
                if answer.status_code == 503:
                    return "503" if answer.headers.get("Retry-After") else "503 without Retry-After"
                if answer.status_code != 200:
                    return f"{answer.status_code} {answer.text[:200]}"
                lines = [line[6:] for line in answer.iter_lines(decode_unicode=True) if line.startswith("data: ")]
        except requests.RequestException as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
        errors = [line for line in lines if line.startswith('{"error"')]
        if errors:
            return f"error in the stream: {errors[0][:200]}"
        if lines[-1:] != ["[DONE]"]:
            return "cut before [DONE]"
        return "ok" if any(json.loads(line).get("choices") for line in lines[:-1]) else "no text"


class Connections:
    """*rate* new connections a second, each one GET and its whole answer. A context manager; ``failed`` counts by fault."""

    def __init__(self, url, rate=200, path="/v1/models"):
        self.address = url.removeprefix("http://").partition(":")[::2]
        self.rate, self.path = rate, path
        self.done, self.failed = 0, collections.Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self):
        self._thread.start()
        self.began = time.monotonic()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(60)
        self.seconds = time.monotonic() - self.began

    async def _run(self):
        tasks, due = set(), time.monotonic()
        while not self._stop.is_set():
            due += 1 / self.rate
            await asyncio.sleep(max(0, due - time.monotonic()))
            task = asyncio.ensure_future(self._one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def _one(self):
        host, port = self.address
        try:
            async with asyncio.timeout(30):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(f"GET {self.path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answer = await reader.read()
                writer.close()
        except (OSError, TimeoutError) as error:
            self.failed[type(error).__name__] += 1
        else:
            if answer.startswith(b"HTTP/1.1 200"):
                self.done += 1
            else:
                self.failed[answer[:12].decode("latin-1") or "empty answer"] += 1
