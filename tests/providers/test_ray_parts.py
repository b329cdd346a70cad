"""What a machine requests of a Ray cluster, and messages to the user; without a cluster."""

import io
import subprocess
import sys

import pytest

from seer.console import progress
from seer.console._progress import current_phase
from seer.errors import ConfigError, HostUnsuitableError, SandboxNotFoundError
from seer.providers import MachineSpec, why_unavailable
from seer.providers.ray import RayOptions, RayProvider
from seer.providers.ray._options import read_options
from seer.providers.ray._provider import STARTING, describe_waiting, resources_of

_NODES = (
    {"CPU": 8.0, "GPU": 2.0, "accelerator_type:A100": 1.0},
    {"CPU": 8.0, "GPU": 8.0, "accelerator_type:A100-80G": 1.0},
    {"CPU": 64.0},
)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_importing_seer_and_its_providers_does_not_import_ray() -> None:
    code = (
        "import seer, sys, seer.providers; seer.providers.get_provider('ray'); "
        "sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_ray_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    assert (
        RayProvider().unavailable() == "Ray is not installed; run: pip install 'seer-interp[ray]'"
    )


def test_ray_is_available_where_it_is_installed() -> None:
    assert why_unavailable("ray") is None


def test_the_address_comes_from_the_options_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert read_options(None).address == ""
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert read_options(None).address == "head:6379"
    assert read_options({"address": "other:6379"}).address == "other:6379"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"adress": "x"}, "adress"),
        ({"address": "ray://head:10001"}, "Ray Client"),
        ({"cpus": -1}, "cpus"),
        ({"cpus": True}, "cpus"),
        ({"resources": {"disk": 0}}, "disk"),
        ({"resources": {"GPU": 1}}, "gpu_count"),
        ({"resources": 3}, "mapping"),
        (7, "RayOptions"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(given: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_options(given)


def test_a_spec_takes_what_it_names_and_one_cpu_otherwise() -> None:
    bare = resources_of(MachineSpec(), RayOptions(), _NODES)
    assert bare.totals() == {"CPU": 1.0}
    spec = MachineSpec(cpus=4, memory=8 << 30, gpu="A100", gpu_count=2)
    full = resources_of(spec, RayOptions(resources={"fast": 1}), _NODES)
    assert full.totals() == {"CPU": 4, "GPU": 2, "memory": 8 << 30, "fast": 1}


@pytest.mark.parametrize(
    ("gpu", "kind"), [("A100", "A100-80G"), ("A100-80G", "A100-80G"), ("a100", "A100-80G")]
)
def test_a_gpu_stands_for_the_kind_that_the_cluster_has_most_of(gpu: str, kind: str) -> None:
    assert resources_of(MachineSpec(gpu=gpu), RayOptions(), _NODES).kind == kind


def test_a_gpu_that_the_cluster_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(HostUnsuitableError, match=r"H200.*A100 \(2\), A100-80G \(8\)"):
        resources_of(MachineSpec(gpu="H200"), RayOptions(), _NODES)


def test_waiting_is_told_with_what_is_asked_for_what_is_free_and_how_many_wait() -> None:
    wants = resources_of(
        MachineSpec(cpus=4, memory=2 << 30, gpu="A100"), RayOptions(resources={"b": 1}), _NODES
    )
    seen = {
        "free": {"CPU": 3.0, "memory": 1 << 30},
        "largest": {"CPU": 8.0, "GPU": 8.0, "memory": 1 << 30, "b": 1.0},
        "waiting": 3,
    }
    assert describe_waiting(wants, seen) == (
        "Ray: waiting for 4 CPU, 1 GPU, 2.0 GiB, 1 b; "
        "free in the cluster: 3 CPU, 0 GPU, 1.0 GiB, 0 b; 3 wait in the cluster; "
        "no node is large enough (the largest has 1.0 GiB)"
    )


def test_a_start_that_has_room_is_not_called_waiting() -> None:
    wants = resources_of(MachineSpec(), RayOptions(), _NODES)
    seen = {"free": {"CPU": 3.0}, "largest": {"CPU": 8.0}, "waiting": 0}
    assert describe_waiting(wants, seen) == STARTING


async def test_without_a_cluster_nothing_is_listed_and_nothing_started() -> None:
    provider = RayProvider()
    assert await provider.list() == []
    with pytest.raises(SandboxNotFoundError):
        await provider.find("sb-0123456789abcdef@0123456789ab.0123456789abcdef")


def test_what_waits_far_below_a_phase_finds_it() -> None:
    assert current_phase() is None
    with progress("a start", mode="plain", file=io.StringIO()) as display:
        with display.phase("outer") as outer, display.phase("inner") as inner:
            assert current_phase() is inner
        assert current_phase() is None
        assert outer is not inner
