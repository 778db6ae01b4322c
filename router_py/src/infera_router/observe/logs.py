"""Logging: one line per record, text or JSON, with the request id where there is one."""

from __future__ import annotations

import json
import logging
import sys
import time

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + ".%03dZ" % record.msecs
        request = getattr(record, "request_id", None)
        text = f"{stamp} {record.levelname.lower()} {record.name}: {record.getMessage()}"
        if request:
            text += f" request_id={request}"
        if record.exc_info:
            text += " | " + self.formatException(record.exc_info).replace("\n", " | ")
        return text.replace("\n", "\\n").replace("\r", "\\r")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        value = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + ".%03dZ" % record.msecs,
            "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage(),
        }
        request = getattr(record, "request_id", None)
        if request:
            value["request_id"] = request
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return json.dumps(value, ensure_ascii=False)


def setup(form: str, level: str) -> None:
    """Send everything to stderr in the given format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def extra(request_id: str) -> dict[str, str]:
    """The `extra` argument that puts the request id into a record."""
    return {"request_id": request_id}
