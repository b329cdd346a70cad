"""A machine gets free GPUs of the kind it wants, and no others."""

import pytest

from seer.errors import CapacityError, HostUnsuitableError
from seer.providers._remote.gpus import Gpu, fits, pick

_GPUS = [
    Gpu(0, "NVIDIA A100-SXM4-80GB", busy=True),
    Gpu(1, "NVIDIA A100-SXM4-80GB", busy=False),
    Gpu(2, "NVIDIA GeForce RTX 4090", busy=False),
    Gpu(3, "NVIDIA A100-SXM4-80GB", busy=False),
]


@pytest.mark.parametrize(
    ("wanted", "name", "fitting"),
    [
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("A100-40GB", "NVIDIA A100-SXM4-80GB", False),
        ("RTX4090", "NVIDIA GeForce RTX 4090", True),
        ("H100", "NVIDIA A100-SXM4-80GB", False),
    ],
)
def test_names_of_configurations_are_found_in_full_names(
    wanted: str, name: str, fitting: bool
) -> None:
    assert fits(wanted, name) is fitting


def test_busy_and_taken_gpus_are_left_alone() -> None:
    assert pick(_GPUS, "A100", 1, taken={1}, share=False) == (3,)
    assert pick(_GPUS, "A100", 2, taken=(), share=False) == (1, 3)
    with pytest.raises(CapacityError, match="1 in use by sandboxes, 1 by other processes"):
        pick(_GPUS, "A100", 2, taken={3}, share=False)


def test_sharing_takes_free_ones_first() -> None:
    assert pick(_GPUS, "A100", 3, taken={1}, share=True) == (3, 0, 1)


def test_a_host_without_as_many_is_no_host_for_them() -> None:
    with pytest.raises(HostUnsuitableError, match="RTX 4090"):
        pick(_GPUS, "RTX4090", 2, taken=(), share=True)
