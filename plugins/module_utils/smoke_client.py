# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP of the smoke checks: JSON, an SSE stream, a metrics page. ``requests`` does the talking."""
from __future__ import annotations

import json
import re

try:
    import requests
except ImportError:
    requests = None

__all__ = ["Client", "SmokeError", "have_requests", "parse_metrics", "read_stream"]

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class SmokeError(Exception):
    """A check failed; the text is its evidence."""


def have_requests():
    return requests is not None


def parse_metrics(text):
    """Return [(name, labels dict, value)] of a Prometheus text page."""
    out = []
    for line in text.splitlines():
        found = None if line.startswith("#") else _SAMPLE.match(line)
        if found:
            try:
                out.append((found.group(1), dict(_LABEL.findall(found.group(2) or "")), float(found.group(3))))
            except ValueError:
                continue
    return out


def read_stream(lines):
    """Return {text, usage: [dict], done, errors: [dict], chunks} of an SSE answer to a chat completion."""
    out = {"text": "", "usage": [], "done": False, "errors": [], "chunks": 0}
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            out["done"] = True
            continue
        event = json.loads(data)
        out["chunks"] += 1
        if event.get("error"):
            out["errors"].append(event["error"])
        if event.get("usage"):
            out["usage"].append(event["usage"])
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            out["text"] += (delta.get("reasoning_content") or "") + (delta.get("content") or "")
    return out


class Client:
    """Talks to one deployment. *timeout*: seconds for one answer."""

    def __init__(self, url, model, timeout):
        self.url, self.model, self.timeout = url.rstrip("/"), model, timeout

    def get(self, path, base=None):
        try:
            return requests.get((base or self.url) + path, timeout=min(self.timeout, 30))
        except requests.RequestException as error:
            raise SmokeError(f"GET {(base or self.url) + path}: {type(error).__name__}: {error}") from None

    def metrics(self, base=None):
        answer = self.get("/metrics", base)
        if answer.status_code != 200:
            raise SmokeError(f"GET {(base or self.url)}/metrics: HTTP {answer.status_code}")
        return parse_metrics(answer.text)

    def post(self, path, body):
        """Return the JSON of a 200; anything else is a SmokeError with status and text."""
        try:
            answer = requests.post(self.url + path, json=body, timeout=self.timeout)
        except requests.RequestException as error:
            raise SmokeError(f"POST {path}: {type(error).__name__}: {error}") from None
        if answer.status_code != 200:
            raise SmokeError(f"POST {path}: HTTP {answer.status_code}: {answer.text[:300]}")
        try:
            return answer.json()
        except ValueError:
            raise SmokeError(f"POST {path}: 200, but no JSON: {answer.text[:200]}") from None

    def chat(self, prompt, tokens, **more):
        return self.post("/v1/chat/completions", self.body(prompt, tokens, **more))

    def stream(self, prompt, tokens, **more):
        body = self.body(prompt, tokens, stream=True, stream_options={"include_usage": True}, **more)
        try:
            with requests.post(self.url + "/v1/chat/completions", json=body, stream=True, timeout=self.timeout) as answer:
                if answer.status_code != 200:
                    raise SmokeError(f"POST /v1/chat/completions (stream): HTTP {answer.status_code}: {answer.text[:300]}")
                answer.encoding = "utf-8"
                return read_stream(answer.iter_lines(decode_unicode=True))
        except (requests.RequestException, ValueError) as error:
            raise SmokeError(f"stream: {type(error).__name__}: {error}") from None

    def body(self, prompt, tokens, **more):
        return dict({"model": self.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0}, **more)
