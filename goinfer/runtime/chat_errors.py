"""Typed errors of chat templates."""

from goinfer.bundle_format.errors import GoinferError


class TemplateError(GoinferError):
    """A chat template does not compile or does not render."""


class TemplateRefusalError(TemplateError):
    """The template itself refuses the conversation (`raise_exception`); `text` is what it says."""

    def __init__(self, text: str) -> None:
        super().__init__(f"chat template: {' '.join(text.split())}")
        self.text = text


class TemplateLimitError(TemplateError):
    """Rendering takes more time or memory than it may."""
