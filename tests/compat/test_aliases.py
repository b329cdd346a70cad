"""Programs that use `src.*` or `interp_infra.*` get Seer's own objects, except those listed."""

import importlib
import re
from pathlib import Path

import pytest

MODULES = ["environment", "workspace", "execution", "harness", "rpc"]
TABLE = Path(__file__).parents[2] / "docs" / "original.md"
OLD_MODULES = [
    *MODULES,
    "environment.config",
    "environment.handles",
    "environment.sandbox",
    "environment.scoped_sandbox",
    "execution.base",
    "execution.cli_session",
    "execution.local_notebook_session",
    "execution.local_session",
    "execution.notebook_session",
    "harness.agent",
    "harness.interactive",
    "harness.logging",
    "harness.providers",
    "mcps",
    "rpc_helpers",
    "workspace.library",
    "workspace.skill",
    "workspace.workspace",
]


@pytest.mark.parametrize("name", OLD_MODULES)
def test_both_spellings_are_one_module(name: str) -> None:
    old = importlib.import_module(f"src.{name}")
    assert importlib.import_module(f"interp_infra.{name}") is old


@pytest.mark.parametrize("name", MODULES)
def test_what_is_not_seers_own_object_is_listed_and_derived_from_it(name: str) -> None:
    old, own = importlib.import_module(f"src.{name}"), importlib.import_module(f"seer.{name}")
    listed = set(re.findall(rf"`{name}\.(\w+)`", TABLE.read_text().split("## ")[0]))
    differing = {each for each in own.__all__ if getattr(old, each) is not getattr(own, each)}
    assert differing == listed
    for each in differing:
        known, given = getattr(own, each), getattr(old, each)
        if isinstance(known, type):
            assert issubclass(given, known), each
