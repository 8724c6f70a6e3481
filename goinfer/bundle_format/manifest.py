"""The manifest section: one JSON object, UTF-8, sorted keys, no duplicates, no NaN."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from goinfer.bundle_format import spec
from goinfer.bundle_format.errors import DuplicateKeyError, ManifestError, WriterStateError

_ADVICE = "compile the model again"


def encode_manifest(values: Mapping[str, Any]) -> bytes:
    """The manifest's bytes; equal values give equal bytes whatever the order of the keys."""
    try:
        text = json.dumps(values, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = text.encode("utf-8")
    except (TypeError, ValueError) as error:
        raise WriterStateError(f"bad manifest value: {error}: use JSON types and finite numbers") from error
    if len(data) > spec.MAX_MANIFEST_SIZE:
        raise WriterStateError(f"manifest too large: {len(data)} bytes, at most {spec.MAX_MANIFEST_SIZE}")
    return data


def decode_manifest(data: bytes | memoryview, where: str) -> dict[str, Any]:
    """The object that the section `manifest` holds."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in pairs:
            if key in values:
                raise DuplicateKeyError(
                    f"bad manifest: {where}: section manifest has the key {key[:80]!a} twice: {_ADVICE}"
                )
            values[key] = value
        return values

    def refuse(text: str) -> NoReturn:
        raise ManifestError(f"bad manifest: {where}: section manifest holds {text}: {_ADVICE}")

    try:
        values = json.loads(bytes(data).decode("utf-8"), object_pairs_hook=no_duplicates, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = ascii(str(error))[1:-1][:120]
        raise ManifestError(f"bad manifest: {where}: section manifest is no JSON ({reason}): {_ADVICE}") from error
    if not isinstance(values, dict):
        raise ManifestError(f"bad manifest: {where}: section manifest is no JSON object: {_ADVICE}")
    return values
