"""What the kv room raises; neither ever reaches a client."""

from infera_router.fleet.options import UsageError


class TokenizerError(UsageError):
    """The tokenizer folder cannot be used. The message names the option, the value and the fix."""


class Unknown(Exception):
    """The worker's prompt cannot be known for this request, which is then routed on load.

    `reason` is one word, used as a metric label.
    """

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(detail or reason)
        self.reason = reason
