"""Every key of a config is read, named as irrelevant, or refused by name."""

import pytest

from goinfer.compiler.checkpoints.config_view import ConfigView
from goinfer.compiler.errors import ConfigError, UnsupportedError

VALUES = {"a": 1, "b": None, "nested": {"x": 1, "deeper": {"y": 2}}, "items": [{"z": 1}], "flag": False}


def test_reading_marks_and_finish_names_the_rest():
    view = ConfigView(VALUES, "config.json")
    assert view.get("a") == 1
    assert view["nested"].get("x") == 1
    with pytest.raises(UnsupportedError, match=r"config\.json: unknown config key flag, items, nested\.deeper: "):
        view.finish()
    with pytest.raises(UnsupportedError, match="key flag, items: "):
        view.finish({"nested.deeper"})
    view.finish({"nested.deeper", "items", "flag"})
    assert view["nested"]["deeper"]["y"] == 2
    view.finish({"items", "flag"})


def test_absent_null_and_default():
    view = ConfigView(VALUES)
    assert view.get("b", 7) is None
    assert view.get("missing", 7) == 7
    assert "b" in view
    assert "missing" not in view
    with pytest.raises(ConfigError, match="config: key missing is missing"):
        view.require("missing")
    with pytest.raises(ConfigError, match=r"key nested\.gone is missing"):
        view["nested"].require("gone")
    with pytest.raises(ConfigError, match="key b is missing"):
        view.require("b")


def test_a_null_that_nobody_read_says_nothing():
    ConfigView({"b": None}).finish()


def test_looking_at_keys_is_not_reading():
    view = ConfigView({"a": 1, "n": {"x": 1}})
    assert list(view) == ["a", "n"]
    assert len(view) == 2
    assert "a" in view
    with pytest.raises(UnsupportedError, match="key a, n:"):
        view.finish()
    assert dict(view)["a"] == 1
    with pytest.raises(UnsupportedError, match=r"key n\.x:"):
        view.finish()
    assert dict(view["n"]) == {"x": 1}
    view.finish()


def test_many_unknown_keys_are_still_one_short_line():
    with pytest.raises(UnsupportedError, match=r"k0, k1, k10, .* and 12 more"):
        ConfigView({f"k{i}": i for i in range(20)}).finish()


def test_the_source_is_not_changed_or_shared():
    source = {"n": {"x": 1}}
    view = ConfigView(source)
    source["n"]["x"] = 2
    assert view["n"]["x"] == 1
    with pytest.raises(TypeError):
        view["n"] = 3  # type: ignore[index]
