"""A machine gets free GPUs of the requested kind, and no others."""

import logging
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from seer.environment import Sandbox, SandboxConfig
from seer.errors import CapacityError, HostUnsuitableError, StartError
from seer.providers import GPUS
from seer.providers._gpus import Device, is_kind, pick, spelled_by
from seer.providers.modal._prices import GPUS as MODAL_GPUS

_FULL_NAMES = {
    "T4": ["Tesla T4"],
    "V100": ["Tesla V100-SXM2-16GB", "Tesla V100-PCIE-32GB"],
    "P100": ["Tesla P100-PCIE-16GB"],
    "L4": ["NVIDIA L4"],
    "A10": ["NVIDIA A10"],
    "A10G": ["NVIDIA A10G"],
    "A30": ["NVIDIA A30"],
    "A40": ["NVIDIA A40"],
    "L40": ["NVIDIA L40"],
    "L40S": ["NVIDIA L40S"],
    "A100-40GB": ["NVIDIA A100-SXM4-40GB", "A100-PCIE-40GB", "A100-40G"],
    "A100-80GB": ["NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "A100-80G"],
    "H100": ["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "H100 SXM"],
    "H100-NVL": ["NVIDIA H100 NVL"],
    "GH200": ["NVIDIA GH200 480GB"],
    "H200": ["NVIDIA H200", "NVIDIA H200 NVL"],
    "B200": ["NVIDIA B200"],
    "B300": ["NVIDIA B300 SXM6 AC"],
    "RTX3090": ["NVIDIA GeForce RTX 3090"],
    "RTX4090": ["NVIDIA GeForce RTX 4090"],
    "RTX5090": ["NVIDIA GeForce RTX 5090"],
    "RTX4000-Ada": ["NVIDIA RTX 4000 Ada Generation"],
    "RTX6000-Ada": ["NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"],
    "RTXA4000": ["NVIDIA RTX A4000"],
    "RTXA5000": ["NVIDIA RTX A5000"],
    "RTXA6000": ["NVIDIA RTX A6000"],
    "RTXPRO6000": ["NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"],
    "MI300X": ["AMD Instinct MI300X OAM"],
    # Kinds that no configuration can name, next to others with similar names.
    "": [
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA RTX 4000 SFF Ada Generation",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "Quadro RTX 6000",
        "NVIDIA GB200",
        "NVIDIA H20",
    ],
}
_DEVICES = [
    Device(0, "NVIDIA A100-SXM4-80GB", busy=True),
    Device(1, "NVIDIA A100-SXM4-80GB", busy=False),
    Device(2, "NVIDIA GeForce RTX 4090", busy=False),
    Device(3, "NVIDIA A100-SXM4-80GB", busy=False),
]


@pytest.mark.parametrize("wanted", sorted(GPUS))
def test_a_name_means_its_own_kind_and_no_other(wanted: str) -> None:
    """`A10` is not `A100`, `L4` not `L40S`, `A40` not `RTX A4000`, `H200` not `GH200`."""
    own = {name for kind in _FULL_NAMES if kind == wanted for name in _FULL_NAMES[kind]}
    if wanted == "A100":
        own = {*_FULL_NAMES["A100-40GB"], *_FULL_NAMES["A100-80GB"]}
    every = {name for names in _FULL_NAMES.values() for name in names}
    assert {name for name in every if is_kind(wanted, name)} == own


def test_memory_that_is_known_apart_from_the_name_counts() -> None:
    assert is_kind("A100-80GB", "A100 PCIe", memory_gib=80)
    assert not is_kind("A100-80GB", "A100 PCIe", memory_gib=40)
    assert not is_kind("A100-80GB", "A100 PCIe")


def test_every_gpu_of_modals_can_be_asked_for_and_is_spelled_its_way() -> None:
    asked = {name: spelled_by(name, MODAL_GPUS) for name in GPUS}
    assert asked["RTXPRO6000"] == "RTX-PRO-6000"
    assert {name for name in MODAL_GPUS if name[-1] not in "!+"} <= set(asked.values())
    assert asked["A100"] == "A100" and asked["A10G"] == "A10G" and asked["V100"] == "V100"


def _numbers(devices: list[Device]) -> list[int]:
    return [device.index for device in devices]


def test_busy_and_taken_gpus_are_left_alone() -> None:
    assert _numbers(pick(_DEVICES, "A100", 1, taken=[1], share=False)) == [3]
    assert _numbers(pick(_DEVICES, "A100", 2, taken=[], share=False)) == [1, 3]
    with pytest.raises(CapacityError, match="1 in use by sandboxes, 1 by other processes"):
        pick(_DEVICES, "A100", 2, taken=[3], share=False)


def test_sharing_takes_free_ones_first_and_then_the_least_used() -> None:
    assert _numbers(pick(_DEVICES, "A100", 3, taken=[1, 1], share=True)) == [3, 0, 1]
    assert _numbers(pick(_DEVICES, "A100", 2, taken=[0, 1, 1, 3], share=True)) == [0, 3]


def test_a_host_without_as_many_is_no_host_for_them() -> None:
    with pytest.raises(HostUnsuitableError, match="RTX 4090"):
        pick(_DEVICES, "RTX4090", 2, taken=[], share=True)
    assert len(pick(_DEVICES, "RTX4090", 2, taken=[], share=True, any_kind=True)) == 2


# --- on this host ---------------------------------------------------------------------------------

_SMI = """#!/bin/sh
case $1 in
  --query-gpu*)
    echo '0, GPU-a, NVIDIA A100-SXM4-80GB'
    echo '1, GPU-b, NVIDIA A100-SXM4-80GB'
    echo '2, GPU-c, Tesla T4' ;;
esac
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """This host, with three GPUs that `nvidia-smi` lists, and no machines yet."""
    (tmp_path / "nvidia-smi").write_text(_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    assert Sandbox.list(provider="local") == []


def _visible(sandbox: Sandbox) -> str:
    return str(sandbox.exec("echo $CUDA_VISIBLE_DEVICES")).strip()


@pytest.mark.full
def test_local_sandboxes_get_gpus_of_their_own_while_there_are_any(
    host: None, caplog: pytest.LogCaptureFixture
) -> None:
    config = SandboxConfig(gpu="A100", provider="local", network="none")
    with Sandbox(config) as one:
        with Sandbox(config) as two:
            assert (_visible(one), _visible(two)) == ("0", "1")
            assert "shared" not in caplog.text
            with Sandbox(config) as three:
                assert _visible(three) == "0"
                assert "GPU 0 is shared" in caplog.text
        with Sandbox(config) as again:
            assert _visible(again) == "1"
            again.pause()
            assert "its GPU memory stays allocated: this host's driver cannot" in caplog.text
            again.resume()
            assert _visible(again) == "1"


@pytest.mark.full
def test_a_gpu_among_others_is_selected_in_the_order_in_which_nvidia_smi_counts(host: None) -> None:
    env = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    with Sandbox(SandboxConfig(gpu="T4", provider="local", network="none", env=env)) as sandbox:
        said = sandbox.exec("echo $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES")
        assert str(said).strip() == "PCI_BUS_ID 2"


@pytest.mark.full
def test_a_gpu_that_is_not_here_is_an_error_where_the_provider_was_written(host: None) -> None:
    config = SandboxConfig(gpu="A10", provider="local", network="none")
    with pytest.raises(StartError, match="gpu='A10'.*Tesla T4"):
        Sandbox(config).start()


@pytest.mark.full
def test_what_is_here_is_used_where_the_provider_was_resolved(
    host: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SEER_PROVIDER", "local")
    with (
        caplog.at_level(logging.WARNING),
        Sandbox(SandboxConfig(gpu="H100", network="none")) as sandbox,
    ):
        assert _visible(sandbox) == "0"
        assert Sandbox.list(provider="local")[0].gpu == "NVIDIA A100-SXM4-80GB", "what it really is"
    assert "gpu='H100'" in caplog.text and "Tesla T4; using that instead" in caplog.text
