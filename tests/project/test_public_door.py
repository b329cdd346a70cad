"""Each package has one public door: a sorted `__all__` that equals its public namespace."""

import __future__

import importlib
import types
from pathlib import Path

import pytest

import seer

ROOT = Path(seer.__file__).parent
PACKAGES = sorted(p.parent.name for p in ROOT.glob("*/__init__.py"))


def _order(name: str) -> tuple[int, str]:
    """Constants, classes, then the rest, each by name; as ruff and isort have it."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("name", PACKAGES)
def test_all_equals_the_public_namespace(name: str) -> None:
    package = importlib.import_module(f"seer.{name}")
    exported: list[str] = list(package.__all__)
    assert exported == sorted(exported, key=_order), "keep __all__ sorted"
    assert len(exported) == len(set(exported))
    for attribute in exported:
        assert hasattr(package, attribute), f"seer.{name}.{attribute} does not exist"
    public = {
        attribute
        for attribute, value in vars(package).items()
        if not attribute.startswith("_")
        and attribute != "TYPE_CHECKING"
        and not isinstance(value, types.ModuleType | __future__._Feature)  # pyright: ignore[reportPrivateUsage]
    }
    assert public <= set(exported), f"not in __all__: {sorted(public - set(exported))}"
