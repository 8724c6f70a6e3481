"""Recipes are complete tables: every role, known formats, vectors in f32."""

import pytest

from goinfer.bundle_format.errors import UsageError
from goinfer.compiler.quant.formats import FORMATS
from goinfer.compiler.quant.recipes import DEFAULT_RECIPE, MATRIX_ROLES, RECIPES, VECTOR_ROLES, recipe_named


@pytest.mark.parametrize("name", RECIPES)
def test_every_role_has_a_known_format(name):
    recipe = recipe_named(name)
    for role in MATRIX_ROLES + VECTOR_ROLES:
        assert recipe.choose(role).format in FORMATS
    for role in VECTOR_ROLES:
        assert recipe.choose(role) == RECIPES["f32"].choose("norm")
    with pytest.raises(KeyError, match="no role 'router'"):
        recipe.choose("router")


def test_the_table_of_the_design():
    formats = {name: {r.choose(role).format for role in MATRIX_ROLES} for name, r in RECIPES.items()}
    assert formats == {
        "f32": {"f32"}, "bf16": {"bf16"}, "int8": {"int8"}, "int8int8": {"int8"},
        "int4": {"int4", "int8"}, "int4all": {"int4"},
    }
    assert RECIPES["int4"].choose("embed").format == RECIPES["int4"].choose("head").format == "int8"
    assert RECIPES["int8"].choose("mlp_down").activations == "f32"
    assert RECIPES["int8int8"].choose("mlp_down").activations == "int8"
    assert RECIPES["f32"].kv == "f32"
    assert DEFAULT_RECIPE == "int4"


def test_an_unknown_recipe_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"int5.*f32, bf16, int8, int8int8, int4, int4all"):
        recipe_named("int5")
