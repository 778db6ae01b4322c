"""The routes that reach an engine, and what each may carry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Route:
    """`rid`: the engine takes our request id in the body there. `count_only`: nothing is generated, any prefill or mixed worker answers.

    `prepare` is the name under which the prompt is rendered and sized, None where there is none. `anthropic`: errors have that dialect.
    """

    path: bytes
    rid: bool
    prepare: str | None
    count_only: bool = False
    anthropic: bool = False


ENGINE_ROUTES: dict[bytes, Route] = {route.path: route for route in (
    Route(b"/v1/chat/completions", True, "/v1/chat/completions"),
    Route(b"/v1/completions", True, "/v1/completions"),
    Route(b"/v1/responses", False, "/v1/responses"),
    Route(b"/v1/messages", False, "/v1/messages", anthropic=True),
    Route(b"/v1/messages/count_tokens", False, None, count_only=True, anthropic=True),
    Route(b"/generate", True, "/generate"),
)}
