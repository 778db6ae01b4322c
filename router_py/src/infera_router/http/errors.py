"""Errors as clients see them: one table from a reason to a status, one body per dialect, no exception text, no address."""

from __future__ import annotations

import json

# reason -> (status, OpenAI error type, Anthropic error type)
TABLE: dict[str, tuple[int, str, str]] = {
    "bad_request": (400, "invalid_request_error", "invalid_request_error"),
    "unauthorized": (401, "authentication_error", "authentication_error"),
    "model_not_found": (404, "not_found_error", "not_found_error"),
    "not_found": (404, "not_found_error", "not_found_error"),
    "method_not_allowed": (405, "invalid_request_error", "invalid_request_error"),
    "request_timeout": (408, "timeout_error", "timeout_error"),
    "too_large": (413, "invalid_request_error", "request_too_large"),
    "unsupported_media": (415, "invalid_request_error", "invalid_request_error"),
    "expectation_failed": (417, "invalid_request_error", "invalid_request_error"),
    "overloaded": (429, "rate_limit_error", "rate_limit_error"),
    "headers_too_large": (431, "invalid_request_error", "invalid_request_error"),
    "internal": (500, "internal_error", "api_error"),
    "protocol_mismatch": (500, "internal_error", "api_error"),
    "engine_error": (502, "engine_error", "api_error"),
    "leg_failed": (502, "engine_unreachable", "api_error"),
    "no_worker": (503, "service_unavailable", "overloaded_error"),
    "draining": (503, "service_unavailable", "overloaded_error"),
    "timeout": (504, "timeout_error", "timeout_error"),
}


def status_of(reason: str) -> int:
    return TABLE[reason][0]


def body(reason: str, message: str, anthropic: bool = False, request_id: str | None = None) -> bytes:
    """The JSON body of an error answer in the dialect of the route that was called."""
    status, openai_type, anthropic_type = TABLE[reason]
    if anthropic:
        value: dict = {"type": "error", "error": {"type": anthropic_type, "message": message}}
        if request_id:
            value["request_id"] = request_id
    else:
        value = {"error": {"message": message, "type": openai_type, "code": reason, "status": status}}
    return json.dumps(value, separators=(",", ":")).encode()


def event(reason: str, message: str, anthropic: bool = False, request_id: str | None = None) -> bytes:
    """The same as one server-sent event, for a stream that has already begun."""
    return (b"event: error\n" if anthropic else b"") + b"data: " + body(reason, message, anthropic, request_id) + b"\n\n"
