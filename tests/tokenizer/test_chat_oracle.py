"""Every construct and conversation, as transformers renders it."""

from datetime import datetime
from typing import Any

import pytest

from goinfer.runtime.chat import ChatTemplate
from goinfer.runtime.chat_errors import TemplateError, TemplateRefusalError
from tests.tokenizer import chat_cases

pytestmark = pytest.mark.oracle


def theirs(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    options.setdefault("add_generation_prompt", True)
    messages = [{k: v for k, v in m.items() if v is not None} for m in messages]
    rendered, _ = render_jinja_template([messages], chat_template=source, **chat_cases.TOKENS, **options)
    return str(rendered[0])


@pytest.mark.parametrize(("name", "source", "messages", "options"), chat_cases.CONVERSATIONS)
def test_same_text(name: str, source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> None:
    assert ChatTemplate(source, chat_cases.TOKENS).render(messages, **options) == theirs(source, messages, **options)


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_under_any_name(field: str) -> None:
    source = "{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}|{{ messages[0].reasoning }}"
    messages = [{"role": "assistant", "content": "a", field: "because"}]
    assert ChatTemplate(source).render(messages) == theirs(source, messages)


@pytest.mark.parametrize("text", ["%d %b %Y", "%B %d, %Y", "%Y-%m-%d"])
def test_clock(text: str) -> None:
    source = f"{{{{ strftime_now('{text}') }}}}"
    assert ChatTemplate(source).render([]) == theirs(source, [])
    assert ChatTemplate(source, clock=lambda: datetime(2024, 7, 4)).render([]) == datetime(2024, 7, 4).strftime(text)


def test_both_refuse() -> None:
    from jinja2 import TemplateError as Theirs

    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(Theirs, match="must alternate"):
        theirs(chat_cases.ALTERNATING, messages)
    with pytest.raises(TemplateRefusalError, match="must alternate"):
        ChatTemplate(chat_cases.ALTERNATING).render(messages)
    broken = "{{ messages[0].content + 1 }}"
    with pytest.raises(TypeError):
        theirs(broken, messages)
    with pytest.raises(TemplateError, match="TypeError"):
        ChatTemplate(broken).render(messages)
