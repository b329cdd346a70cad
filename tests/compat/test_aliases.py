"""Programs that say `src.*` or `interp_infra.*` get Seer's own modules."""

import importlib

import pytest

MODULES = ["environment", "workspace", "execution", "harness", "rpc"]


@pytest.mark.parametrize("spelling", ["src", "interp_infra"])
@pytest.mark.parametrize("name", MODULES)
def test_alias_is_the_very_module(spelling: str, name: str) -> None:
    alias = importlib.import_module(f"{spelling}.{name}")
    assert alias is importlib.import_module(f"seer.{name}")


@pytest.mark.parametrize("spelling", ["src", "interp_infra"])
def test_alias_classes_are_identical_to_seers(spelling: str) -> None:
    alias = importlib.import_module(f"{spelling}.environment")
    original = importlib.import_module("seer.environment")
    assert alias.Sandbox is original.Sandbox
