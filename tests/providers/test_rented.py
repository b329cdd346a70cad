"""Rented machines: the rental monitor's decisions, waiting for capacity, and vendors' errors."""

import fcntl
import inspect
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest
from grpclib import GRPCError, Status
from modal import exception as modal_exception

from seer.errors import (
    CapacityError,
    ConfigError,
    CredentialsError,
    HostUnreachableError,
    ImageBuildError,
    ProviderError,
    QuotaError,
    SandboxLostError,
    SeerError,
    UnknownGpuError,
)
from seer.providers.modal import _errors as modal_errors
from seer.providers.modal._options import ModalOptions
from seer.providers.modal._options import read_options as read_modal
from seer.providers.modal._prices import price_per_second
from seer.providers.rented import _rental, rental_monitor
from seer.providers.rented._rental import CODES, reason_of
from seer.providers.rented.rental_monitor import RentalMonitor
from seer.providers.runpod import _api as runpod_api
from seer.providers.runpod._options import RunPodOptions
from seer.providers.runpod._options import read_options as read_runpod
from seer.providers.runpod._pods import GpuOffer, choose

# --- the rental monitor ----------------------------------------------------------------


def _machine(root: Path, name: str = "sb-1") -> Path:
    folder = root / "state" / "seer" / "machines" / name
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    return folder


def test_a_machine_is_kept_while_its_controller_gives_signs_of_life(tmp_path: Path) -> None:
    watching = RentalMonitor(str(tmp_path), lease=5.0, lifetime=0)
    assert watching.look() is None
    os.utime(tmp_path / "beat", (time.time() - 6, time.time() - 6))
    assert "lease" in str(watching.look())
    os.utime(tmp_path / "beat")
    assert watching.look() is None


def test_a_clock_that_was_set_back_does_not_keep_a_machine(tmp_path: Path) -> None:
    watching = RentalMonitor(str(tmp_path), lease=5.0, lifetime=0)
    os.utime(tmp_path / "beat", (time.time() + 3600, time.time() + 3600))
    assert "lease" in str(watching.look())


def test_a_machine_whose_keeper_lives_needs_no_signs_and_goes_with_it(tmp_path: Path) -> None:
    watching = RentalMonitor(str(tmp_path), lease=5.0, lifetime=0)
    folder = _machine(tmp_path)
    with (folder / "lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        os.utime(tmp_path / "beat", (0, 0))
        assert watching.look() is None
    ended = {"id": "sb-1", "reason": "it was idle for 3 s", "ended_at": 0}
    (tmp_path / "state" / "seer" / "ended.jsonl").write_text(json.dumps(ended) + "\n")
    assert watching.look() == "it was idle for 3 s"


def test_a_keeper_that_left_no_word_was_killed(tmp_path: Path) -> None:
    watching = RentalMonitor(str(tmp_path), lease=5.0, lifetime=0)
    folder = _machine(tmp_path)
    with (folder / "lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert watching.look() is None
    assert "keeper was killed" in str(watching.look())


def test_a_lifetime_ends_also_a_machine_that_is_kept(tmp_path: Path) -> None:
    watching = RentalMonitor(str(tmp_path), lease=5.0, lifetime=1e-9)
    folder = _machine(tmp_path)
    with (folder / "lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert watching.look() == "its timeout passed"


def test_the_warden_leaves_with_a_code_that_says_why(tmp_path: Path) -> None:
    settings = {
        "root": str(tmp_path),
        "lease": 60,
        "lifetime": 0,
        "give_back": "exit",
        "mark": False,
    }
    (tmp_path / "leave").touch()
    argv = [sys.executable, "-I", "-S", "-c", Path(rental_monitor.__file__).read_text()]
    done = subprocess.run(
        [*argv, json.dumps({**settings, "codes": CODES})],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (CODES["terminated"], "seer: terminated\n")
    assert reason_of(done.returncode) == "terminated"


@pytest.mark.parametrize("words", CODES)
def test_every_reason_has_a_code_of_its_own_and_comes_back(words: str) -> None:
    assert words in str(reason_of(CODES[words]))
    assert len(set(CODES.values())) == len(CODES)


# --- missing packages ---------------------------------------------------------------------------


@pytest.mark.parametrize(("provider", "package"), [("modal", "modal"), ("runpod", "asyncssh")])
def test_a_missing_package_is_an_error_that_names_the_extra(provider: str, package: str) -> None:
    code = (
        "import sys; sys.modules[sys.argv[2]] = None\n"
        "from seer.errors import MissingExtraError\n"
        "from seer.providers import get_provider\n"
        "try: get_provider(sys.argv[1])\n"
        "except MissingExtraError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, provider, package], capture_output=True, text=True, timeout=60
    )
    assert f"pip install 'seer-interp[{provider}]'" in done.stdout, done.stderr


# --- capacity ----------------------------------------------------------------------------------


async def test_capacity_is_waited_for_and_the_wait_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_rental, "FIRST_PAUSE", 0.01)
    tries: list[float] = []

    async def attempt(left: float) -> str:
        tries.append(left)
        if len(tries) < 3:
            raise CapacityError("no A100")
        return "rented"

    with caplog.at_level(logging.WARNING):
        got = await _rental.retry_until_capacity(attempt, what="gpu='A100' at X", patience=30)
    assert got == "rented"
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING"]
    assert "gpu='A100' at X: no capacity yet (no A100); waited 0 s, up to 30 s more" in caplog.text


async def test_the_wait_for_capacity_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rental, "FIRST_PAUSE", 0.02)

    async def attempt(left: float) -> str:
        raise CapacityError("no A100")

    with pytest.raises(CapacityError, match=r"start_timeout=0.05 s \(no A100\); try another gpu"):
        await _rental.retry_until_capacity(attempt, what="x", patience=0.05)


# --- Modal's errors ----------------------------------------------------------------------------


def _modal_exceptions() -> list[type[BaseException]]:
    return [
        kind
        for name, kind in inspect.getmembers(modal_exception, inspect.isclass)
        if issubclass(kind, modal_exception.Error) and not name.startswith("_")
    ]


@pytest.mark.parametrize("kind", _modal_exceptions())
def test_every_exception_of_the_sdk_is_in_the_map(kind: type[BaseException]) -> None:
    assert kind in modal_errors.MAP
    made = modal_errors.MAP[kind]("the vendor's words")
    assert isinstance(made, SeerError)
    assert "the vendor's words" in str(made)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (modal_exception.AuthError("Token missing"), CredentialsError),
        (modal_exception.ResourceExhaustedError("Insufficient capacity"), CapacityError),
        (modal_exception.ResourceExhaustedError("sandbox limit of 5 reached"), QuotaError),
        (modal_exception.InvalidError("Invalid GPU type 'Z9'"), UnknownGpuError),
        (modal_exception.InvalidError("timeout"), ProviderError),
        (modal_exception.ImageBuildError("failed", "im-1"), ImageBuildError),
        (modal_exception.NotFoundError("gone"), SandboxLostError),
        (modal_exception.ConnectionError("no route"), HostUnreachableError),
        (GRPCError(Status.UNAVAILABLE, "down"), HostUnreachableError),
        (ConnectionResetError("reset"), HostUnreachableError),
    ],
)
def test_errors_of_the_sdk_become_typed_with_its_words(
    error: Exception, wanted: type[SeerError]
) -> None:
    with pytest.raises(wanted) as caught, modal_errors.translated():
        raise error
    assert type(caught.value) is wanted
    assert caught.value.__cause__ is error


def test_what_is_not_of_the_sdk_passes_as_it_is() -> None:
    with pytest.raises(KeyError), modal_errors.translated():
        raise KeyError("ours")
    with pytest.raises(QuotaError, match="ours"), modal_errors.translated():
        raise QuotaError("ours")


# --- RunPod's errors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("There are no longer any instances available with the requested ...", CapacityError),
        ("There are not enough free GPUs on the host machine to start this pod.", CapacityError),
        ("Your account balance is too low.", QuotaError),
        ("You have reached your spend limit.", QuotaError),
        ("Pod limit reached.", QuotaError),
        ("Unauthorized", CredentialsError),
        ("Something went wrong. Please try again later or contact support.", ProviderError),
    ],
)
def test_messages_of_runpod_become_typed_with_its_words(
    words: str, wanted: type[SeerError]
) -> None:
    made = runpod_api.translate(words)
    assert type(made) is wanted
    assert words in str(made)


def test_every_line_of_the_map_can_be_reached() -> None:
    for number, (part, make) in enumerate(runpod_api.ERRORS):
        assert type(runpod_api.translate(f"x {part} y")) is type(make("")), number


async def test_without_a_key_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    with pytest.raises(CredentialsError, match="RUNPOD_API_KEY is not set; create one at"):
        await runpod_api.request("query { myself { id } }", {}, repeat=False)


# --- GPUs, prices, options ---------------------------------------------------------------------

_OFFERS = [
    GpuOffer("NVIDIA A100-SXM4-80GB", "A100 SXM", 80, 1.49, in_stock=True),
    GpuOffer("NVIDIA A100 80GB PCIe", "A100 PCIe", 80, 1.39, in_stock=True),
    GpuOffer("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB", 40, 1.0, in_stock=False),
    GpuOffer("NVIDIA GeForce RTX 4090", "RTX 4090", 24, 0.69, in_stock=True),
]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("A100", ["A100 PCIe", "A100 SXM", "A100 SXM 40GB"]),
        ("A100-80GB", ["A100 PCIe", "A100 SXM"]),
        ("A100-40GB", ["A100 SXM 40GB"]),
        ("RTX 4090", ["RTX 4090"]),
        ("rtx-4090", ["RTX 4090"]),
        ("NVIDIA A100 80GB PCIe", ["A100 PCIe"]),
    ],
)
def test_a_gpus_name_stands_for_what_is_in_stock_and_cheap_first(
    wanted: str, names: list[str]
) -> None:
    assert [offer.name for offer in choose(wanted, _OFFERS)] == names


def test_an_unknown_gpu_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(UnknownGpuError, match="gpu='B300': RunPod has A100 PCIe, A100 SXM"):
        choose("B300", _OFFERS)


def test_prices_of_modal_count_gpus_cores_and_memory() -> None:
    alone = price_per_second(None, 1, cores=None, memory=None)
    one = price_per_second("a100", 1, cores=4, memory=16 << 30)
    two = price_per_second("A100", 2, cores=4, memory=16 << 30)
    assert alone is not None and one is not None and two is not None
    assert 0 < alone < one
    assert two - one == pytest.approx(0.000583)
    assert price_per_second("Z9", 1, cores=None, memory=None) is None


def test_options_come_as_mappings_or_as_themselves() -> None:
    assert read_modal({"app": "mine", "volume": None}) == ModalOptions(app="mine", volume=None)
    assert read_modal(ModalOptions(region="eu")).region == "eu"
    assert read_runpod({"cloud": "COMMUNITY"}) == RunPodOptions(cloud="COMMUNITY")
    assert read_runpod(None) == RunPodOptions()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ap": "x"}, "provider_options='ap': Modal has: app, environment"),
        ({"app": ""}, "ModalOptions.app='': must be a non-empty string"),
        (RunPodOptions(), "must be ModalOptions or a mapping"),
    ],
)
def test_options_that_modal_does_not_have_are_refused(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        read_modal(given)


@pytest.mark.parametrize(
    "given", [{"clouds": "ALL"}, {"cloud": "MINE"}, {"container_disk_gb": 0}, {"image": ""}, 7]
)
def test_options_that_runpod_does_not_have_are_refused(given: object) -> None:
    with pytest.raises(ConfigError):
        read_runpod(cast("dict[str, object]", given))
