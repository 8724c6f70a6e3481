"""Chat template and generation defaults of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from goinfer.compiler.checkpoints.json_files import read_bytes, read_json
from goinfer.compiler.checkpoints.source import TokenizerSource
from goinfer.compiler.errors import ConfigError

_SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def generation_defaults(path: Path, config: Mapping[str, Any], source: TokenizerSource | None) -> dict[str, Any]:
    """eos_token_ids, bos and pad; sampling settings only where the model's makers switched sampling on."""
    given = read_json(path / "generation_config.json") if (path / "generation_config.json").exists() else {}
    out: dict[str, Any] = {}
    if given.get("do_sample"):
        out |= {key: given[key] for key in _SAMPLING if isinstance(given.get(key), int | float)}
    out["eos_token_ids"] = _ids(given, config, "eos_token_id")
    if not out["eos_token_ids"] and source is not None and source.eos is not None:
        out["eos_token_ids"] = [source.eos]
    for key, of_tokenizer in (("bos_token_id", source and source.bos), ("pad_token_id", source and source.pad)):
        ids = _ids(given, config, key)
        if ids or of_tokenizer is not None:
            out[key] = ids[0] if ids else of_tokenizer
    if source is not None:
        out["add_bos"] = source.add_bos
    return out


def chat_template(path: Path) -> str | None:
    """The default chat template: its own file, or the entry of tokenizer_config.json."""
    own = path / "chat_template.jinja"
    if own.exists():
        return read_bytes(own).decode("utf-8", "replace") or None
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = read_json(path / name).get("chat_template") if (path / name).exists() else None
        if isinstance(template, list):
            named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = named.get("default")
        if isinstance(template, str) and template:
            return template
    return None


def _ids(given: Mapping[str, Any], config: Mapping[str, Any], key: str) -> list[int]:
    """One id or several, from generation_config.json or else from config.json."""
    value = given.get(key) if given.get(key) is not None else config.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(i) is not int for i in ids):
        raise ConfigError(f"config: {key}: {value!r} is not a token id")
    return [i for i in ids if i >= 0]
