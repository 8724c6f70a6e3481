# ruff: noqa: E501 - templates are kept in one piece
"""Chat templates, one for each construct that released ones use, and conversations to render them with."""

from typing import Any

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

ALTERNATING = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'] + '\n\n' -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set first = "" -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""

TOOLS_AND_THINKING = """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Tools\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and reasoning %}
            {{- '<|im_start|>assistant\n<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- if call.function %}{%- set call = call.function %}{%- endif %}
                {{- '\n<tool_call>\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
                {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""

PIECEWISE = """{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{{ m['content'] + '<|end|>' }}{% endfor %}"""

CONSTRUCTS = {
    "reverse slice": "{% for m in messages[::-1] %}{{ m.role }},{% endfor %}{{ 'abc'[::-1] }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "tests": "{{ 'a' is string }}{{ 1 is number }}{{ none is none }}{{ x is defined }}{{ {} is mapping }}{{ [] is iterable }}",
    "string methods": "{{ messages[0].content.startswith('h') }}{{ 'a,b'.split(',') }}{{ ' x '.strip() }}{{ 'aXb'.lower() }}",
    "tojson": "{{ messages | tojson }}|{{ {'k': '<é&>\"'} | tojson(indent=2) }}|{{ [1, 2.5, none, true] | tojson }}",
    "tojson options": "{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}",
    "loop controls": "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.role }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "loop variables": "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "generation": "a{% generation %}{% set y = 1 %}{{ messages[1].content }}{% endgeneration %}b{{ y is defined }}",
    "macro": "{% macro f(x, y='d') %}[{{ x }}|{{ y }}]{% endmacro %}{{ f('a') }}{{ f(1, y=2) }}",
    "recursion": "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "call block": "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}in{% endcall %}",
    "set block": "{% set x %}a{{ 1 + 1 }}b{% endset %}{{ x }}{{ x | length }}",
    "filters": "{{ messages | map(attribute='role') | join(', ') }}{{ ['b','a']|sort|first }}{{ 'a b'|replace(' ', '_')|upper|title }}",
    "selection": "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ [3,1]|max }}{{ 'x'|default('y') }}{{ z|default('w') }}",
    "dict": "{{ dict(a=1)['a'] }}{% for k, v in {'x': 1, 'y': 2}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'a': 1}.get('b', 'none') }}",
    "arithmetic": "{{ 7 // 2 }}{{ 7 % 3 }}{{ 2 ** 10 }}{{ '=' * 5 }}{{ [1] + [2] }}{{ 'a' ~ 1 ~ none }}{{ '%s-%03d' % ('x', 7) }}",
    "format": "{{ '{:>5}|{}'.format('a', 1) }}{{ '%.2f' | format(3.14159) }}{{ '**%s**' | format('bold') }}",
    "padding": "{{ 'x' | center(7) }}|{{ 'a\nb' | indent(4) }}|{{ 'word ' * 5 | wordcount }}|{{ 'abcdef' | truncate(5, true, '..') }}",
    "escape": "{{ '<b>' }}{{ '<b>' | e }}{{ '<b>' | safe }}",
    "undefined": "[{{ nothing }}][{{ messages[0].nothing }}][{{ messages[0]['nothing'] }}]{% if nothing %}x{% endif %}",
    "whitespace": "  {% if true %}\n    a\n  {% endif %}\n{#- note -#}\n  b {%- if true %} c {% endif -%}\n d\n",
    "in and not": "{{ 'user' in messages[0].role }}{{ 'x' not in 'abc' }}{{ not true or false and true }}",
    "inline if": "{{ 'y' if messages else 'n' }}{{ 'only' if false }}",
    "unpacking": "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% else %}none{% endfor %}{% for x in [] %}{% else %}empty{% endfor %}",
    "groupby": "{% for g in messages | groupby('role') %}{{ g.grouper }}{{ g.list | length }}{% endfor %}",
    "bos": "{{ bos_token }}{{ eos_token }}{{ messages[0].content }}",
    "extra variables": "{{ enable_thinking }}{{ custom.a[1] }}",
    "documents": "{% for d in documents %}{{ d.title }}: {{ d['text'] }}{% endfor %}{{ documents is none }}{{ tools is none }}",
    "range": "{% for i in range(3) %}{{ i }}{% endfor %}{{ range(5) | list | last }}",
    "raw": "{% raw %}{{ not a value }}{% endraw %}",
}  # fmt: skip

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi  there"},
    {"role": "user", "content": "  What's 2+2?\n\n日本 🙂 "},
]
WITH_SYSTEM = [{"role": "system", "content": "Be brief."}, *MESSAGES]
WITH_TOOLS: list[dict[str, Any]] = [
    {"role": "system", "content": "Use tools."},
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "look it up",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get", "arguments": {"city": "Zürich"}}}],
    },
    {"role": "tool", "content": '{"t": 7}', "tool_call_id": "c1"},
    {"role": "tool", "content": "cold"},
]
PARTS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what is this? "}]},
]
TOOLS = [{"type": "function", "function": {"name": "get", "description": "<é>", "parameters": {"type": "object"}}}]

CONVERSATIONS: list[tuple[str, str, list[dict[str, Any]], dict[str, Any]]] = [
    ("chatml", CHATML, MESSAGES, {}),
    ("chatml, no prompt", CHATML, WITH_SYSTEM, {"add_generation_prompt": False}),
    ("alternating", ALTERNATING, MESSAGES, {}),
    ("alternating with system", ALTERNATING, WITH_SYSTEM, {}),
    ("alternating with parts", ALTERNATING, PARTS, {}),
    ("tools", TOOLS_AND_THINKING, WITH_TOOLS, {"tools": TOOLS}),
    ("thinking off", TOOLS_AND_THINKING, MESSAGES, {"enable_thinking": False}),
    ("thinking kept", TOOLS_AND_THINKING, MESSAGES[:2], {}),
    ("piecewise", PIECEWISE, MESSAGES, {}),
]
CONVERSATIONS += [
    (name, source, MESSAGES, {"enable_thinking": True, "custom": {"a": [1, "two"]}})
    for name, source in CONSTRUCTS.items()
    if name != "documents"
]
CONVERSATIONS.append(("documents", CONSTRUCTS["documents"], MESSAGES, {"documents": [{"title": "T", "text": "x"}]}))
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
