"""The sandbox chat templates run in. A template comes with a model file, so it is treated as hostile code.

Attributes of Python objects stay out of reach, values cannot be changed, and every way to spend time or memory
(loops, output, string and list arithmetic, padding, replacing, joining) is charged to the budget of the render.
"""

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace

from goinfer.runtime.chat_budget import Budget
from goinfer.runtime.chat_errors import TemplateLimitError, TemplateRefusalError
from goinfer.runtime.chat_instrument import Charge, Generation, Instrument

_MAX_ARGUMENT = 100_000  # widths, counts and the like
_MAX_ITEMS = 1_000_000
_MAX_BITS = 4096
_BIG_PERCENT_FIELD = re.compile(r"%(?:\([^)]*\))?[^a-zA-Z%]*?(?:\*|\d{5})")
_BIG_BRACE_FIELD = re.compile(r"\{[^{}]*:[^{}]*(?:\{|\d{5})")
_SIZED_FILTERS = frozenset(("batch", "center", "indent", "round", "slice", "truncate", "wordwrap"))
# Filters that look at no more than the outermost list, and tests that walk both sides
_SHALLOW = frozenset({
    "attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "random", "reject",
    "rejectattr", "reverse", "select", "selectattr", "slice",
})  # fmt: skip
_COMPARING = frozenset(
    ("==", "!=", "<", "<=", ">", ">=", "eq", "equalto", "ne", "lt", "lessthan", "le", "gt", "greaterthan", "ge", "in")
)
_NO_FILTERS = ("urlize",)  # patterns that take quadratic time on hostile text


class _Namespace(Namespace):
    """A namespace without underscore names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _public(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _public(name)
        super().__setitem__(name, value)


def _public(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace cannot hold the name {name!r}")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates: the same rules for whitespace, filters and globals as transformers'."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.budget = Budget()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # no constant folding: it would run outside of a budget
            finalize=self._finalize,
            extensions=[Generation, Charge, loopcontrols],
        )
        self.filters = {name: self._guarded(name, f) for name, f in FILTERS.items() if name not in _NO_FILTERS}
        self.filters.update(join=self._join, replace=self._replace, format=self._format, tojson=self._tojson)
        self.tests = {name: self._weighing(cast(Any, t)) if name in _COMPARING else t for name, t in TESTS.items()}
        del self.globals["lipsum"]
        self.globals.update(
            namespace=_Namespace,
            raise_exception=_raise_exception,
            strftime_now=lambda text: clock().strftime(self._checked_format(text)),
        )

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        return cast(nodes.Template, Instrument(self.extensions[Charge.identifier]).visit(parsed))

    def _finalize(self, value: Any) -> Any:
        self.budget.weigh(value)
        text = value if isinstance(value, str | Undefined) else str(value)
        self.budget.emit(len(text) if isinstance(text, str) else 0)
        return text

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refused at once: an undefined value would pass silently where nobody looks at it."""
        raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is not allowed")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic, after a look at how big the result gets."""
        if operator == "%" and isinstance(left, str):
            self._checked_format(left)
            self.budget.weigh(right)
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            self.budget.fits(len(left) + len(right))
        elif operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
            self._items(len(left) + len(right))
        elif operator == "*":
            self._check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._bits(left.bit_length() * abs(right))
        return super().call_binop(context, operator, left, right)

    def _check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            self._bits(left.bit_length() + right.bit_length())
            return
        many, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(many, str) and isinstance(times, int):
            self.budget.fits(len(many) * times)
        elif isinstance(many, list | tuple) and isinstance(times, int):
            self._items(len(many) * times)

    def _bits(self, bits: int) -> None:
        if bits > _MAX_BITS:
            raise TemplateLimitError(f"chat template: a number has more than {_MAX_BITS} bits")

    def _items(self, count: int) -> None:
        self.budget.tick()
        if count > _MAX_ITEMS:
            raise TemplateLimitError(f"chat template: a list has more than {_MAX_ITEMS} items")

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls of methods of strings are charged like the filters of the same name."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            __self._check_arguments((*args, *kwargs.values()))
            name = getattr(__obj, "__name__", "")
            if name == "replace":
                return __self._replace(owner, *args, **kwargs)
            if name == "join" and len(args) == 1:
                return __self._join(args[0], owner)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` without fields that pad to great widths."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        self._checked_format(value.__self__, _BIG_BRACE_FIELD)

        def formatted(*args: Any, **kwargs: Any) -> str:
            self._weigh_all((*args, *kwargs.values()))
            text = wrapped(*args, **kwargs)
            self.budget.fits(len(text))
            return text

        return formatted

    def _check_arguments(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, int) and abs(value) > _MAX_ARGUMENT:
                raise TemplateLimitError(f"chat template: the argument {value} is over {_MAX_ARGUMENT}")

    def _weigh_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.budget.weigh(value)

    def _weighing(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """The test, after a look at the size of what it compares."""

        def weighing(*args: Any) -> Any:
            self._weigh_all(args)
            return test(*args)

        return weighing

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter, with bounded widths and counts and a bounded text for a result."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if name in _SIZED_FILTERS:
                self._check_arguments((*args[1:], *kwargs.values()))
            if name not in _SHALLOW:
                self._weigh_all(args)
            result = function(*args, **kwargs)
            if isinstance(result, str):
                self.budget.fits(len(result))
            return result

        marks = getattr(function, "__dict__", {})
        vars(guarded).update({k: v for k, v in marks.items() if k.startswith("jinja_")})
        return guarded

    def _checked_format(self, text: Any, big: re.Pattern[str] = _BIG_PERCENT_FIELD) -> str:
        """The format, if no field of it pads to a great width or takes its width from an argument."""
        self.budget.tick()
        if big.search(str(text)):
            raise TemplateLimitError("chat template: a format field is too wide")
        return str(text)

    def _format(self, value: Any, *args: Any, **kwargs: Any) -> str:
        if args and kwargs:
            raise TypeError("format takes positional or keyword arguments, not both")
        self._weigh_all((*args, *kwargs.values()))
        result: str = self._checked_format(value) % (kwargs or args)
        self.budget.fits(len(result))
        return result

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        pick = make_attrgetter(self, attribute) if attribute is not None else None
        texts: list[str] = []
        size = 0
        for item in value:
            picked = item if pick is None else pick(item)
            self.budget.weigh(picked)
            texts.append(str(picked))
            size += len(texts[-1]) + len(d)
            self.budget.fits(size)
        return str(d).join(texts)

    def _replace(self, s: Any, old: Any, new: Any, count: int = -1) -> str:
        self._weigh_all((s, old, new))
        text, old, new = str(s), str(old), str(new)
        limit = -1 if count is None else count
        found = text.count(old) if limit < 0 else min(limit, text.count(old))
        self.budget.fits(len(text) + found * max(0, len(new) - len(old)))
        return text.replace(old, new, limit)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        self._check_arguments([indent])
        self.budget.weigh(value, len(indent) if isinstance(indent, str) else indent or 0)
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        self.budget.fits(len(text))
        return text


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateRefusalError(str(message))
