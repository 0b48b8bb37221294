"""Sealed files as another program could write them."""

from __future__ import annotations

import json

import xxhash


def sealed_by_hand(header: dict, data: bytes) -> bytes:
    """Seal any header and data by the rule of sealed files."""

    def text(value):
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    digest = xxhash.xxh3_128(text(header) + data).hexdigest()
    header = {**header, "__metadata__": {**header["__metadata__"], "digest": digest}}
    length = -(-len(text(header)) // 8) * 8
    return length.to_bytes(8, "little") + text(header).ljust(length) + data
