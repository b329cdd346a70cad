"""Each package has one public door: a sorted `__all__` that equals its public namespace."""

import importlib
import types
from pathlib import Path

import pytest

import seer

ROOT = Path(seer.__file__).parent
PACKAGES = sorted(p.parent.name for p in ROOT.glob("*/__init__.py"))


@pytest.mark.parametrize("name", PACKAGES)
def test_all_equals_the_public_namespace(name: str) -> None:
    package = importlib.import_module(f"seer.{name}")
    exported: list[str] = list(package.__all__)
    assert exported == sorted(exported), "keep __all__ sorted"
    assert len(exported) == len(set(exported))
    for attribute in exported:
        assert hasattr(package, attribute), f"seer.{name}.{attribute} does not exist"
    public = {
        attribute
        for attribute, value in vars(package).items()
        if not attribute.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public <= set(exported), f"not in __all__: {sorted(public - set(exported))}"
