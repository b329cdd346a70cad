"""Each package has a sorted `__all__` that equals its public namespace."""

import __future__

import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

import seer

ROOT = Path(seer.__file__).parent
PACKAGES = sorted(p.parent.name for p in ROOT.glob("*/__init__.py"))
MOST_NAMES = 260


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


def test_the_number_of_public_names_does_not_grow() -> None:
    """Each public name is a promise. Raise the number only for a name that users need."""
    names = [
        name for package in PACKAGES for name in importlib.import_module(f"seer.{package}").__all__
    ]
    assert len(names) <= MOST_NAMES


def test_the_names_of_the_tutorials_are_the_packages_own() -> None:
    assert list(seer.__all__) == sorted(seer.__all__, key=_order)
    for name in seer.__all__:
        value = getattr(seer, name)
        package = importlib.import_module(".".join(value.__module__.split(".")[:2]))
        assert getattr(package, name) is value
        assert name in dir(seer)
    with pytest.raises(AttributeError, match="no attribute 'Sandbx'"):
        seer.Sandbx  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnusedExpression]


def test_importing_seer_imports_nothing_else_of_it() -> None:
    program = "import sys, seer; print([n for n in sys.modules if n.startswith('seer.')])"
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "[]"
