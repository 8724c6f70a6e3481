"""Chat templates: what they render, what they may not do, and errors."""

import threading
import time
from datetime import datetime
from typing import Any

import pytest

from goinfer.runtime.chat import ChatTemplate
from goinfer.runtime.chat_budget import RenderLimits
from goinfer.runtime.chat_errors import TemplateError, TemplateLimitError, TemplateRefusalError
from tests.tokenizer import chat_cases

M = chat_cases.MESSAGES


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplate(source, chat_cases.TOKENS).render(M if messages is None else messages, **options)


EXPECTED = {
    "reverse slice": "user,assistant,user,cba",
    "namespace": "3",
    "tests": "TrueTrueTrueFalseTrueTrue",
    "loop controls": "useruser",
    "generation": "a<think>\nhm\n</think>\n\nHi  therebFalse",
    "macro": "[a|d][1|2]",
    "recursion": "54321",
    "set block": "a2b3",
    "arithmetic": "311024=====[1, 2]a1Nonex-007",
    "format": "    a|13.14**bold**",
    "escape": "<b>&lt;b&gt;<b>",
    "undefined": "[][][]",
    "bos": "<bos><eos>hello",
    "inline if": "y",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_constructs(name: str) -> None:
    assert render(chat_cases.CONSTRUCTS[name]) == EXPECTED[name]


def test_tojson_keeps_text_as_it_is() -> None:
    assert render("{{ {'k': '<é&>\"'} | tojson }}") == '{"k": "<é&>\\""}'
    assert render("{{ [1, none] | tojson(indent=1) }}") == "[\n 1,\n null\n]"
    assert render("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}") == '{"a":2,"b":1}'


def test_conversation() -> None:
    assert render(chat_cases.CHATML, M[:1]) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert render(chat_cases.CHATML, M[:1], add_generation_prompt=False).endswith("<|im_end|>\n")
    text = render(chat_cases.TOOLS_AND_THINKING, chat_cases.WITH_TOOLS, tools=chat_cases.TOOLS)
    assert '<tool_call>\n{"name": "get", "arguments": {"city": "Zürich"}}\n</tool_call>' in text
    assert '"description": "<é>"' in text
    assert render(chat_cases.TOOLS_AND_THINKING, M, enable_thinking=False).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("text", "shown"), [("%d %b %Y", "04 Jul 2024"), ("%B %d, %Y", "July 04, 2024"), ("%H:%M", "05:06")]
)
def test_clock_is_settable(text: str, shown: str) -> None:
    template = ChatTemplate(f"{{{{ strftime_now('{text}') }}}}", clock=lambda: datetime(2024, 7, 4, 5, 6))
    assert template.render([]) == shown


def test_refusal_of_the_template_carries_its_text() -> None:
    with pytest.raises(TemplateRefusalError, match=r"^chat template: Roles must alternate") as error:
        render(chat_cases.ALTERNATING, [M[1]])
    assert error.value.text.startswith("Roles must alternate")
    with pytest.raises(TemplateRefusalError) as error:
        render("{{ raise_exception('two\n lines') }}")
    assert (str(error.value), error.value.text) == ("chat template: two lines", "two\n lines")


REFUSED_ATTRIBUTES = [
    "{{ lipsum.__globals__ }}",
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self.__dict__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__ }}",
    "{{ 'a' | attr('__class__') }}",
    "{{ ['a'] | map(attribute='__class__') | list }}",
    "{{ ['a'] | map('attr', '__class__') | list }}",
    "{{ ['a'] | groupby('__class__') }}",
    "{{ ['a'] | join(',', attribute='__class__') }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{0.__class__}'.format_map({'0': 1}) }}",
    "{{ 'x'.format.__globals__ }}",
    "{{ range.__class__ }}",
    "{{ dict.__base__ }}",
    "{{ dict.mro() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{% macro m() %}{% endmacro %}{{ m.__globals__ }}{{ m._func }}",
    "{{ loop.__class__ }}",
    "{% for m in messages %}{{ loop._iterable }}{% endfor %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends 'x' %}",
]


@pytest.mark.parametrize("source", REFUSED_ATTRIBUTES)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    with pytest.raises(TemplateError) as error:
        render(source)
    assert "\n" not in str(error.value)


def test_objects_do_not_reach_the_template() -> None:
    class Bomb:
        def read(self) -> str:
            raise AssertionError("a method was called")

        def __str__(self) -> str:
            raise AssertionError("it was printed")

    messages = [{"role": "user", "content": Bomb(), "image": b"\x00"}]
    assert render("{{ messages[0].content }}{{ messages[0].image }}", messages) == "<Bomb><bytes>"
    with pytest.raises(TemplateError):
        render("{{ messages[0].content.read() }}", messages)
    source: list[Any] = []
    source.append(source)
    with pytest.raises(TemplateError, match="nested"):
        render("", [{"role": "user", "content": source}])
    with pytest.raises(TemplateError, match="a message is a str"):
        render("", ["hi"])  # type: ignore[list-item]


DOUBLING = (
    "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[1]) %}"
    "{% for i in range(60) %}{% set a.x = [a.x, a.x] %}{% set b.x = [b.x, b.x] %}{% endfor %}"
)
BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% if false %}x{% endif %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 'a' * 1000000000 }}",
    "{{ 1000000000 * 'a' }}",
    "{{ [0] * 1000000000 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'abcdefghij' * 100 }}{% endfor %}",
    "{% for i in range(99999) %}" + "z" * 1000 + "{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{{ 'a' * 10000 }}{% endfor %}{% endset %}",
    "{% set x %}{% for i in range(99999) %}" + "z" * 1000 + "{% endfor %}{% endset %}",
    "{% macro m() %}{% for i in range(99999) %}{{ 'a' * 10000 }}{% endfor %}{% endmacro %}{% set x = m() %}",
    "{% set ns = namespace(x='a' * 1000) %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a' * 1000) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{{ 'x' | center(1000000000) }}",
    "{{ 'x' | indent(1000000000, true) }}",
    "{{ [1] | batch(1000000000, 0) | list }}",
    "{{ [1] | slice(1000000000) | list }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%(a)1000000000d' % {'a': 1} }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '{:>{}}'.format(1, 1000000000) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x'.zfill(width=1000000000) }}",
    "{{ '\t'.expandtabs(1000000000) }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "{{ ('x' * 1000000).join(['a'] * 1000) }}",
    "{{ (['a'] * 1000) | join('x' * 1000000) }}",
    "{{ (['a' * 1000000] * 1000) | join }}",
    "{{ (['a' * 1000000] * 1000) | tojson }}",
    "{{ [[[1] * 1000] * 1000] | tojson(indent=900) }}",
    "{{ [1] | tojson(indent=1000000000) }}",
    "{{ range(1000000000) | list }}",
    "{{ [['a' * 1000000] * 1000] * 1000 }}",
    "{{ ([['a' * 1000000] * 1000] * 1000) | string }}",
    "{{ ([['a' * 1000000] * 1000] * 1000) ~ 'x' }}",
    "{{ '%s' % ([['a' * 1000000] * 1000] * 1000) }}",
    "{{ '{}'.format([['a' * 1000000] * 1000] * 1000) }}",
    "{{ [[['a' * 1000000] * 1000] * 1000] | join }}",
    DOUBLING + "{{ a.x == b.x }}",
    DOUBLING + "{{ a.x != b.x }}",
    DOUBLING + "{{ a.x in [b.x] }}",
    DOUBLING + "{{ a.x is eq(b.x) }}",
    DOUBLING + "{{ [a.x] | select('equalto', b.x) | list }}",
    DOUBLING + "{{ [a.x, b.x] | sort }}",
    DOUBLING + "{{ [a.x, b.x] | max }}",
    DOUBLING + "{{ a.x | tojson }}",
    "{{ strftime_now('%1000000000Y') }}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_bombs_are_stopped_in_time(source: str) -> None:
    template = ChatTemplate(source, limits=RenderLimits(seconds=0.5, chars=1 << 20))
    start = time.monotonic()
    with pytest.raises(TemplateError) as error:
        template.render(M)
    assert time.monotonic() - start < 10  # generous: what matters is that it ends
    assert "\n" not in str(error.value)


def test_limits_are_typed_and_settable() -> None:
    source = "{% for i in range(1000) %}0123456789{% endfor %}"
    assert len(ChatTemplate(source, limits=RenderLimits(chars=10_000)).render([])) == 10_000
    with pytest.raises(TemplateLimitError, match="over 9999 characters"):
        ChatTemplate(source, limits=RenderLimits(chars=9_999)).render([])
    slow = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateLimitError, match=r"took more than 0\.05 s"):
        ChatTemplate(slow, limits=RenderLimits(seconds=0.05)).render([])


def test_limits_are_per_render_and_per_thread() -> None:
    template = ChatTemplate("{{ messages[0].content }}", limits=RenderLimits(chars=100))
    for _ in range(5):
        assert len(template.render([{"content": "x" * 90}])) == 90
    results: list[int] = []
    work = [
        threading.Thread(target=lambda: results.append(len(template.render([{"content": "y" * 90}])))) for _ in range(8)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert results == [90] * 8


def test_long_conversations_fit() -> None:
    messages = [{"role": "user", "content": "word " * 2000}] * 500
    assert len(render(chat_cases.CHATML, messages)) > 5_000_000


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "chat template: line 1: Expected an expression"),
        ("a\n{{ 'x' | nofilter }}", "chat template: line 2: No filter named 'nofilter'"),
        ("{% for x in y %}", "chat template: line 1: Unexpected end of template"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be compiled"),
        ("x" * (1 << 20) + "x", "1048577 characters, the limit is 1048576"),
    ],
)
def test_templates_that_do_not_compile(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message) as error:
        ChatTemplate(source)
    assert "\n" not in str(error.value)


def test_failures_name_the_line() -> None:
    with pytest.raises(TemplateError, match=r"^chat template: line 3: UndefinedError: 'x' is undefined"):
        render("\n\n{{ x.y }}")


def test_nulls_are_left_out_of_messages() -> None:
    source = "{{ messages[0].content is defined }}{{ messages[0].nested.a is none }}"
    assert render(source, [{"role": "user", "content": None, "nested": {"a": None}}]) == "FalseTrue"
