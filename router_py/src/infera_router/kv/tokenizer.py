"""Text to token ids, equal to the worker's tokenizer, through the fastest library that is proven equal.

`tokenizers` (Hugging Face) is the reference. `gigatoken`, where installed, is some hundred times faster; it is used only
after its ids equalled the reference's on text made from the model's own vocabulary, and is spot-checked afterwards.
"""

from __future__ import annotations

import _thread
import logging
import os
import pathlib
import random
import threading
from array import array

from .errors import TokenizerError
from .template import ChatTemplate, load_json, load_template

log = logging.getLogger(__name__)

# gigatoken 0.10.0 remembers every word it has seen, without a limit of its own. It is made anew when the process has grown by this much; that
# keeps the interpreter lock for about 0.13 s per MB of tokenizer.json (measured), so it must be rare. Looked at after each so many characters.
GROWTH_LIMIT = 1 << 30
LOOK_EVERY = 24 * 1024 * 1024
_SLICE = 8192
# 4,096 characters take tokenizers 2 to 4 ms (measured), and a new prompt of 100k tokens is some 50 calls: one in 10 of them pays for a check.
SPOT_CHECK_EVERY = 512
SPOT_CHECK_CHARS = 4096
_SAFE_PRE_TOKENIZERS = {
    "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Punctuation", "Split", "UnicodeScripts", "Whitespace",
    "WhitespaceSplit"}
# Models whose prompts SGLang 0.5.22 builds without the Jinja template; the router does not know their encoders.
_OWN_ENCODERS = ("DeepseekV4", "KimiK3", "InklingForConditionalGeneration", "GptOss")


def check_folder(folder: str | pathlib.Path) -> pathlib.Path:
    """The tokenizer.json in `folder`; raises TokenizerError where there is none. Cheap: nothing is loaded."""
    path = pathlib.Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"--router-tokenizer-path: {folder} has no tokenizer.json; give the model's folder, with tokenizer.json, "
            "tokenizer_config.json and config.json")
    return path


class Tokenizer:
    """The tokenizer of one model folder. Thread-safe; both libraries let other threads run while they encode.

    Attributes: `template` (ChatTemplate or None), `cuts` (texts of added tokens after which a prompt may be cut without
    changing any id; empty where the tokenizer gives no such guarantee), `fast` (whether gigatoken is in use), `bos_id`,
    `adds_specials` (a raw text gets special tokens around it), `own_encoder` (an architecture that SGLang renders without the template).
    """

    def __init__(self, folder: str | pathlib.Path, fast: bool = True):
        path = check_folder(folder)
        folder = path.parent
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Reference

        config = load_json(folder / "tokenizer_config.json")
        model = load_json(folder / "config.json")
        try:
            self._reference = Reference.from_file(str(path))
        except Exception as exc:
            raise TokenizerError(f"--router-tokenizer-path: {path} is no tokenizer of the tokenizers library: {exc}") from exc
        self._reference.no_truncation()
        self._reference.no_padding()
        self._batch = getattr(self._reference, "encode_batch_fast", self._reference.encode_batch)
        known = {token.content for token in self._reference.get_added_tokens_decoder().values()}
        for entry in (config.get("added_tokens_decoder") or {}).values():
            if isinstance(entry, dict) and entry.get("content") and entry["content"] not in known:
                options = {key: bool(entry.get(key, False)) for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
                self._reference.add_tokens([AddedToken(entry["content"], **options)])
        architecture = " ".join(model.get("architectures") or [])
        self.own_encoder = next((name for name in _OWN_ENCODERS if name in architecture), None)
        self.multimodal = "vision_config" in model or "audio_config" in model
        self.template: ChatTemplate | None = load_template(folder, config)
        if self.template is None and "DeepseekV3" in architecture:
            self.own_encoder = "DeepseekV3"
        self.adds_specials = bool(self._reference.encode("").ids)
        bos = config.get("bos_token")
        bos = bos.get("content") if isinstance(bos, dict) else bos
        self.bos_id = self._reference.token_to_id(bos) if isinstance(bos, str) else None
        self.cuts = safe_cuts(self._reference)
        self._json = self._reference.to_str() if fast else ""
        self._fast = None
        self._lock = threading.Lock()
        self._fast_chars = 0
        self._base_bytes = 0
        self._since_check = 0
        if fast:
            self._start_fast()
        self._json = self._json if self._fast else ""
        self._base_bytes = resident_bytes()

    @property
    def fast(self) -> bool:
        return self._fast is not None

    def encode(self, text: str) -> array:
        """Ids (array 'I') of `text` without special tokens around it, added tokens inside it recognised."""
        fast = self._fast
        if fast is None:
            return self._plain(text, False)
        ids = array("I")
        ids.frombytes(memoryview(fast.encode(text)).cast("B"))
        self._fast_chars += len(text)
        self._since_check += 1
        if self._since_check >= SPOT_CHECK_EVERY:
            self._since_check = 0
            self._spot_check(text)
        if self._fast_chars > LOOK_EVERY:
            self._fast_chars = 0
            if resident_bytes() - self._base_bytes > GROWTH_LIMIT:
                self._renew_fast()
        return ids

    def encode_raw(self, text: str) -> array:
        """Ids of a raw completion prompt, with the special tokens that the tokenizer puts around a text."""
        if not self.adds_specials:
            return self.encode(text)
        return self._plain(text, True)

    def _plain(self, text: str, specials: bool) -> array:
        """By the tokenizers library. Its `encode` keeps the interpreter lock all the time, its batch calls do not."""
        listed = self._batch([text], add_special_tokens=specials)[0].ids
        ids = array("I")
        for start in range(0, len(listed), _SLICE):
            ids.extend(listed[start:start + _SLICE])
        return ids

    def encode_prefix(self, text: str) -> array:
        """Ids of an assistant text that is to be continued: as a raw prompt, a leading BOS taken off."""
        ids = self.encode_raw(text)
        return ids[1:] if ids and self.bos_id is not None and ids[0] == self.bos_id else ids

    def _start_fast(self) -> None:
        try:
            import gigatoken

            fast = gigatoken.Tokenizer.from_json(self._json)
            for text in proof_texts(self._reference):
                if array("I", fast.encode(text).tobytes()) != array("I", self._reference.encode(text, add_special_tokens=False).ids):
                    log.warning("gigatoken's ids differ from the tokenizers library's on this model; using tokenizers")
                    return
            self._fast = gigatoken.Tokenizer.from_json(self._json)
        except ImportError:
            log.info("gigatoken is not installed; prompts are tokenized by the tokenizers library")
        except BaseException as exc:  # a Rust panic is no Exception
            if isinstance(exc, (KeyboardInterrupt, SystemExit)):
                raise
            log.warning("gigatoken cannot load this tokenizer (%s); using tokenizers", exc)

    def _spot_check(self, text: str) -> None:
        sample = text[:SPOT_CHECK_CHARS]
        if array("I", self._fast.encode(sample).tobytes()) != array("I", self._reference.encode(sample, add_special_tokens=False).ids):
            log.error("gigatoken gave other ids than tokenizers on a request; it is not used any more")
            self._fast = None

    def _renew_fast(self) -> None:
        """Replace the fast tokenizer, whose memory grows with the text that it has seen."""
        if not self._lock.acquire(blocking=False):
            return
        log.warning("gigatoken has grown; it is loaded anew, which takes the router a moment")

        def work():
            try:
                import gigatoken

                fresh = gigatoken.Tokenizer.from_json(self._json)
                if self._fast is not None:
                    self._fast = fresh
                self._base_bytes = resident_bytes()
            finally:
                self._lock.release()

        # Thread.start() would wait for the thread, and this may be the event loop.
        _thread.start_new_thread(work, ())


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    try:
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def safe_cuts(reference) -> tuple[str, ...]:
    """Added tokens after which the ids of a text never depend on what follows, nor what follows on what went before.

    The library splits a text at added tokens first and runs normalizer, pre-tokenizer and model on each piece by itself. That makes
    the end of an added token a boundary if (1) no piece is treated by its position in the sequence, (2) the token takes no
    neighbouring whitespace with it and is matched on the raw text, and (3) its occurrence can neither be the start of a longer
    added token nor be overlapped by one that begins earlier. Tokenizers outside these conditions give ().
    """
    import json

    config = json.loads(reference.to_str())

    def independent(pre) -> bool:
        if pre is None:
            return True
        if pre.get("type") == "Sequence":
            return all(independent(item) for item in pre.get("pretokenizers", []))
        return pre.get("type") in _SAFE_PRE_TOKENIZERS and not pre.get("add_prefix_space", False)

    def plain(normalizer) -> bool:
        if normalizer is None:
            return True
        if normalizer.get("type") == "Sequence":
            return all(plain(item) for item in normalizer.get("normalizers", []))
        return normalizer.get("type") in {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}

    if not independent(config.get("pre_tokenizer")) or not plain(config.get("normalizer")) or (config.get("model") or {}).get("dropout"):
        return ()
    added = [token for token in reference.get_added_tokens_decoder().values() if token.content]
    if any(token.lstrip or token.rstrip or token.single_word for token in added):
        return ()
    contents = [token.content for token in added]

    def overlaps(other: str, cut: str) -> bool:
        if other != cut and cut in other:
            return True
        return any(other.endswith(cut[:size]) for size in range(1, min(len(cut), len(other) + 1)) if size < len(cut))

    return tuple(sorted(
        token.content for token in added
        if not token.normalized and not any(overlaps(other, token.content) for other in contents)))


def proof_texts(reference, seed: int = 7) -> list[str]:
    """Texts (about 120 KB) made from the model's own vocabulary, added tokens, other scripts, odd spaces and digits."""
    rng = random.Random(seed)
    size = reference.get_vocab_size(with_added_tokens=True)
    added = [token.content for token in reference.get_added_tokens_decoder().values()]
    spaces = [" ", "  ", "\n", "\n\n", "\t", " \n ", "\r\n", "\u00a0", "\u3000", ""]
    odd = ["'s", "'LL", "don't", "1234567", "3.14", "e\u0301", "\u00e9", "\u4f60\u597d", "\u0395\u03bb", "\u202eabc", "\ud55c\uad6d",
           "\U0001f44d\U0001f3fd", "\x00", "\x7f", "_", "()[]{}", "\u0130", "\ufb01", "<|", "|>", "http://a.b/c?d=e&f"]
    ranges = ((32, 127), (0xA0, 0x2FFF), (0x4E00, 0x9FFF))
    texts = ["", " ", "\n", "a"]
    for _ in range(24):
        parts = []
        for _ in range(40):
            pick = rng.random()
            if pick < 0.5:
                parts.append(reference.decode([rng.randrange(size) for _ in range(rng.randrange(1, 24))], skip_special_tokens=False))
            elif pick < 0.6 and added:
                parts.append(rng.choice(added))
            elif pick < 0.8:
                parts.append(rng.choice(odd))
            else:
                parts.append("".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 40))))
            parts.append(rng.choice(spaces))
        texts.append("".join(parts))
    return texts
