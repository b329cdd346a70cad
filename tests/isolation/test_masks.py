"""Which of Seer's own files a jail would show, and where they are masked. This starts no jail.

It computes the mounts of a jail, which no public function shows.
"""

from pathlib import Path

import pytest

import seer
from seer.errors import IsolationError
from seer.isolation import Mount, Policy, choose
from seer.isolation._mounts import inside, masks_within, own_paths, resolve_mounts

PACKAGE = Path(seer.__file__).resolve().parent


def test_the_package_is_masked_in_every_folder_above_it() -> None:
    for folder in (PACKAGE.parent, *list(PACKAGE.parents)[1:3]):
        relative = [name for name, is_folder in masks_within(str(folder)) if is_folder]
        assert any(PACKAGE.is_relative_to(folder / name) for name in relative)


def test_the_installed_distribution_is_masked() -> None:
    names = {path.name for path in own_paths()}
    assert any(name.startswith("seer_interp-") and name.endswith(".dist-info") for name in names)


def test_a_masked_folder_inside_a_masked_folder_is_covered_once() -> None:
    # The package is in the checkout, and the whole checkout is masked.
    found = [name for name, _ in masks_within(str(PACKAGE.parents[2]))]
    assert found
    assert not any(inside(one, other) for one in found for other in found if one != other)


def test_a_folder_inside_the_checkout_may_be_mounted_but_not_the_checkout() -> None:
    checkout = PACKAGE.parents[1]
    if not (checkout / "pyproject.toml").exists():
        pytest.skip("not a checkout")
    [mount] = resolve_mounts(Policy(mounts=(Mount(checkout / "docs", "/docs"),)))
    assert mount.source == str(checkout / "docs")
    for source in (checkout, PACKAGE, PACKAGE / "isolation"):
        with pytest.raises(IsolationError, match="Seer's own files"):
            resolve_mounts(Policy(mounts=(Mount(source, "/code"),)))


def test_mounts_come_outer_targets_first_and_never_twice(tmp_path: Path) -> None:
    mounts = (Mount(tmp_path, "/a/b"), Mount(tmp_path, "/a"))
    found = resolve_mounts(Policy(mounts=mounts))
    assert [mount.target for mount in found] == ["/a", "/a/b"]
    with pytest.raises(IsolationError, match="two mounts"):
        resolve_mounts(Policy(mounts=(Mount(tmp_path, "/a"), Mount(tmp_path, "/a"))))


def test_views_are_known_before_anything_is_launched(tmp_path: Path) -> None:
    mounts = (Mount(tmp_path, "/workspace", writable=True),)
    assert choose("none").view(mounts) == {"/workspace": str(tmp_path)}
