"""The prompt's size for decode input demand, where kv-aware routing is off."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from .errors import Unknown

log = logging.getLogger(__name__)


class TokenCounter(Protocol):
    def count(self, request: dict) -> int | None:
        """Prompt tokens of a parsed chat or completions body, times n; None where the worker's prompt cannot be known."""


class TemplateCounter:
    """Counts by rendering and encoding the whole prompt. Blocking: 100k tokens take 1 ms with gigatoken, 200 ms without."""

    def __init__(self, renderer):
        self._renderer = renderer

    def count(self, request: dict) -> int | None:
        try:
            prompts = self._renderer.prompts(request)
            if not prompts:
                return None
            return sum(len(prompt) for prompt in prompts) * choices(request)
        except Unknown:
            return None
        except Exception:
            log.exception("a prompt could not be counted; its size is unknown")
            return None


class LazyCounter:
    """Loads the tokenizer in a thread, so that the router answers at once; sizes are unknown until it is there."""

    def __init__(self, path: str):
        self._path = path
        self._counter: TokenCounter | None = None
        self._thread = threading.Thread(target=self._load, name="tokenizer-load", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        from .renderer import Renderer
        from .tokenizer import Tokenizer

        try:
            self._counter = TemplateCounter(Renderer(Tokenizer(self._path)))
        except Exception as exc:
            log.error("%s", exc)

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the tokenizer is loaded, after at most `timeout` seconds."""
        self._thread.join(timeout)
        return self._counter is not None

    def count(self, request: dict) -> int | None:
        counter = self._counter
        return None if counter is None else counter.count(request)


def choices(request: dict) -> int:
    """The body's n. Raises Unknown for a value that the worker refuses."""
    n = request.get("n")
    n = 1 if n is None else n
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 1 << 20:
        raise Unknown("n")
    return n


def load_counter(path: str | None) -> TokenCounter | None:
    """The counter of --router-tokenizer-path; None without one. Raises TokenizerError before anything is served."""
    if not path:
        return None
    from .tokenizer import check_folder

    check_folder(path)
    return LazyCounter(path)
