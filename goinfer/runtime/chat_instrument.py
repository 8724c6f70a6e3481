"""Extensions of chat templates: the generation tag, and charging what a template does to its budget.

A template is rewritten after parsing: every loop round, macro call, literal output,
concatenation and comparison calls back.
"""

from typing import Any, cast

from jinja2 import Environment, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.visitor import NodeTransformer

from goinfer.runtime.chat_budget import Budget


class Generation(Extension):
    """`{% generation %} .. {% endgeneration %}` marks what the model wrote; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - the attribute's name and type are Jinja's

    def parse(self, parser: Parser) -> nodes.Node:
        """The tag as a call of `body`, so that names set inside stay inside."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller: Macro) -> str:
        """The text between the tags."""
        return str(caller())


class Charge(Extension):
    """The calls that instrumented templates make."""

    @property
    def _budget(self) -> Budget:
        return cast(Budget, self.environment.budget)  # type: ignore[attr-defined]

    def tick(self) -> str:
        """A loop round or a macro call."""
        self._budget.tick()
        return ""

    def literal(self, chars: int) -> str:
        """Literal text is written."""
        self._budget.emit(chars)
        return ""

    def concat(self, *parts: Any) -> str:
        """The `~` operator."""
        for part in parts:
            self._budget.weigh(part)
        texts = [str(part) for part in parts]
        self._budget.fits(sum(map(len, texts)))
        return "".join(texts)

    def weighed(self, value: Any) -> Any:
        """An operand of a comparison."""
        self._budget.weigh(value)
        return value


class Instrument(NodeTransformer):
    """Charges loop rounds, macro calls, literal output, concatenation and comparison to the budget."""

    def __init__(self, charge: Extension) -> None:
        self._charge = charge

    def _call(self, name: str, line: int, *args: nodes.Expr) -> nodes.ExprStmt:
        statement = nodes.ExprStmt(self._charge.call_method(name, list(args), lineno=line))
        statement.set_lineno(line)
        return statement

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """Charge every round."""
        self.generic_visit(node)
        node.body.insert(0, self._call("tick", node.lineno))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        """Charge every call: recursion is a loop."""
        self.generic_visit(node)
        node.body.insert(0, self._call("tick", node.lineno))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        """Charge every call of the block."""
        self.generic_visit(node)
        node.body.insert(0, self._call("tick", node.lineno))
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node | list[nodes.Node]:
        """Charge literal text where it is written."""
        self.generic_visit(node)
        literal = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
        if not literal:
            return node
        return [self._call("literal", node.lineno, nodes.Const(literal)), node]

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Comparing lists walks them."""
        self.generic_visit(node)
        node.expr = self._charge.call_method("weighed", [node.expr], lineno=node.lineno)
        for operand in node.ops:
            operand.expr = self._charge.call_method("weighed", [operand.expr], lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Know the size before the text is made."""
        self.generic_visit(node)
        return self._charge.call_method("concat", node.nodes, lineno=node.lineno)


def literal_texts(environment: Environment, source: str) -> list[str]:
    """Every piece of text that the template itself can write: its literals and its string constants."""
    parsed = environment.parse(source)
    texts: list[str] = [node.data for node in parsed.find_all(nodes.TemplateData)]
    texts += [node.value for node in parsed.find_all(nodes.Const) if isinstance(node.value, str)]
    return texts
