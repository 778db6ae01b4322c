"""KV event batches off the wire (SGLang's kv_events), reduced to what the view needs.

A batch is a msgpack array [ts, [event, ...], rank]. SGLang 0.5.22 writes an event as a map with "type"; 0.5.18 and its kin as an array
that begins with the type's name. Both are read; unknown fields and unknown events are ignored. One event may hold many pages.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

GPU, CPU, DISK, EXTERNAL = 1, 2, 4, 8
_TIERS = {None: GPU, "GPU": GPU, "CPU_PINNED": CPU, "CPU": CPU, "DISK": DISK, "EXTERNAL": EXTERNAL}


class Stored(NamedTuple):
    """Pages `hashes` (signed 64-bit, in chain order) are now on `tier`. `parent`: the page before them, None at the root.

    `block_size`: tokens a page; `pairs`: the engine pages pairs of tokens (EAGLE). `foreign`: a LoRA adapter's pages, no hit for others.
    """

    hashes: list[int]
    parent: int | None
    tier: int
    block_size: int
    pairs: bool
    foreign: bool


class Removed(NamedTuple):
    """Pages that left `tier`."""

    hashes: list[int]
    tier: int


class Cleared(NamedTuple):
    """Nothing is left on any tier."""


class _StoredMap(msgspec.Struct, tag_field="type", tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None = None
    token_ids: msgspec.Raw = msgspec.Raw(b"\x90")
    block_size: int = 0
    medium: str | None = None
    lora_id: Any = None
    lora_name: str | None = None


class _RemovedMap(msgspec.Struct, tag_field="type", tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = None


class _ClearedMap(msgspec.Struct, tag_field="type", tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]


_batch = msgspec.msgpack.Decoder(_Batch)
_event = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap)
_any = msgspec.msgpack.Decoder()


def _pairs_in(tokens: bytes) -> bool:
    """Whether the first element of a msgpack array is itself an array of two."""
    if not tokens:
        return False
    lead = tokens[0]
    first = 1 if lead & 0xF0 == 0x90 else 3 if lead == 0xDC else 5 if lead == 0xDD else 0
    return bool(first) and len(tokens) > first and tokens[first] == 0x92


def _signed(hashes: list[int]) -> list[int]:
    """The same as signed 64-bit numbers; TypeError for what is none."""
    return [value - (1 << 64) if value >= 1 << 63 else value for value in hashes]


def _from_array(event: list) -> Stored | Removed | Cleared | None:
    kind = event[0] if event else None
    if kind == "BlockStored" and len(event) >= 5:
        _, hashes, parent, tokens, size = event[:5]
        if not isinstance(size, int) or not isinstance(parent, int | None):
            return None
        lora = event[5] if len(event) > 5 else None
        medium = event[6] if len(event) > 6 else None
        pairs = bool(tokens) and isinstance(tokens[0], (list, tuple))
        return Stored(_signed(hashes), parent, _TIERS.get(medium, EXTERNAL), size, pairs, lora is not None)
    if kind == "BlockRemoved" and len(event) >= 2:
        return Removed(_signed(event[1]), _TIERS.get(event[2] if len(event) > 2 else None, EXTERNAL))
    return Cleared() if kind == "AllBlocksCleared" else None


def decode(payload: bytes) -> tuple[list[Stored | Removed | Cleared], int]:
    """(events in order, events that were not understood). Raises msgspec.DecodeError for a payload that is no batch."""
    out: list[Stored | Removed | Cleared] = []
    unknown = 0
    for raw in _batch.decode(payload).events:
        raw = bytes(raw)
        try:
            if raw[0] & 0xF0 == 0x80 or raw[0] in (0xDE, 0xDF):
                event = _event.decode(raw)
                if isinstance(event, _StoredMap):
                    out.append(Stored(
                        _signed(event.block_hashes), event.parent_block_hash, _TIERS.get(event.medium, EXTERNAL), event.block_size,
                        _pairs_in(bytes(event.token_ids)), event.lora_id is not None or event.lora_name is not None))
                elif isinstance(event, _RemovedMap):
                    out.append(Removed(_signed(event.block_hashes), _TIERS.get(event.medium, EXTERNAL)))
                else:
                    out.append(Cleared())
                continue
            decoded = _from_array(_any.decode(raw))
        except (msgspec.DecodeError, TypeError, ValueError, IndexError):
            decoded = None
        if decoded is None:
            unknown += 1
        else:
            out.append(decoded)
    return out, unknown
