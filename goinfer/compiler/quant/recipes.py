"""Recipes: what `-quant NAME` means, as a table from a parameter's role to its format and activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from goinfer.bundle_format.errors import UsageError

MATRIX_ROLES: Final = ("embed", "head", "attn_qkv", "attn_out", "mlp_gate_up", "mlp_down")
VECTOR_ROLES: Final = ("norm", "bias")
"""Roles that every recipe keeps in f32: they are small, and errors in them touch every value."""


@dataclass(frozen=True)
class Choice:
    """Storage format of a parameter, and the precision of the activations that meet it."""

    format: str
    activations: Literal["f32", "int8"]


@dataclass(frozen=True)
class Recipe:
    """A named choice for every role. `kv` is the key/value cache precision that the recipe implies."""

    name: str
    summary: str
    choices: Mapping[str, Choice]
    kv: Literal["f32", "f16"] = "f16"
    keeps_finer: bool = False
    """Of a file that is 4-bit already, tensors that it keeps finer become int8: its author had a reason."""

    def choose(self, role: str) -> Choice:
        """The choice for a role; a role that the table lacks is a mistake in a family, never a silent default."""
        if role not in self.choices:
            raise KeyError(f"recipe {self.name}: no role {role!r}")
        return self.choices[role]


def _table(matrices: Choice, **exceptions: Choice) -> Mapping[str, Choice]:
    vectors = dict.fromkeys(VECTOR_ROLES, Choice("f32", "f32"))
    return MappingProxyType({**dict.fromkeys(MATRIX_ROLES, matrices), **exceptions, **vectors})


_W8A8: Final = Choice("int8", "int8")
_W4A8: Final = Choice("int4", "int8")

RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType({
    recipe.name: recipe
    for recipe in (
        Recipe("f32", "float32 reference", _table(Choice("f32", "f32")), kv="f32"),
        Recipe("bf16", "bf16 weights, f32 activations", _table(Choice("bf16", "f32"))),
        Recipe("int8", "8-bit weights, f32 activations", _table(Choice("int8", "f32"))),
        Recipe("int8int8", "8-bit weights and activations", _table(_W8A8)),
        Recipe("int4", "4-bit weights, 8-bit activations; embedding and head 8-bit",
               _table(_W4A8, embed=_W8A8, head=_W8A8), keeps_finer=True),
        Recipe("int4all", "4-bit weights everywhere, 8-bit activations", _table(_W4A8)),
    )
})

DEFAULT_RECIPE: Final = "int4"


def recipe_named(name: str) -> Recipe:
    """The recipe of that name, UsageError listing the known ones otherwise."""
    if name not in RECIPES:
        raise UsageError(f"-quant {name}: unknown recipe: use one of {', '.join(RECIPES)}")
    return RECIPES[name]
