"""A prompt that is no chat, as ids. Apart from chat prompts, whose template engine takes a while to import."""

from goinfer.runtime.interfaces import Tokenizer


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a prompt that is no chat: bos as the model wants it, but not a second one before a text that starts
    with it."""
    ids = tokenizer.encode(text, add_special=True)
    return ids[1:] if len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos else ids
