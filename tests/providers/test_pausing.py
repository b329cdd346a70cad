"""GPU memory is moved to the host if it fits, and a failed step is undone."""

import pytest

from seer.providers.agent import cuda


class _Driver:
    """The driver's view of three processes; process 9 uses no GPU."""

    def __init__(self) -> None:
        self.states = {1: "running", 2: "running"}
        self.failing: set[tuple[str, int]] = set()
        self.free = 4096

    def state(self, pid: int) -> int | None:
        names = ["running", "locked", "checkpointed"]
        return names.index(self.states[pid]) if pid in self.states else None

    def _step(self, name: str, pid: int, was: str, then: str) -> str:
        if (name, pid) in self.failing:
            return f"{name} of process {pid}: CUDA_ERROR"
        assert self.states[pid] == was, f"{name} of a process that is {self.states[pid]}"
        self.states[pid] = then
        return ""

    def lock(self, pid: int) -> str:
        return self._step("Lock", pid, "running", "locked")

    def checkpoint(self, pid: int) -> str:
        return self._step("Checkpoint", pid, "locked", "checkpointed")

    def restore(self, pid: int) -> str:
        return self._step("Restore", pid, "checkpointed", "locked")

    def unlock(self, pid: int) -> str:
        return self._step("Unlock", pid, "locked", "running")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    made = _Driver()
    monkeypatch.setattr(cuda, "CudaCheckpoint", lambda: made)
    monkeypatch.setattr(cuda, "memory_of", _memory_of)
    monkeypatch.setattr(cuda, "free_memory", lambda: {"GPU-a": made.free})
    return made


def _memory_of(pids: list[int]) -> dict[str, int]:
    return {"GPU-a": 1024 * len(pids)}


def test_all_gpu_memory_is_moved_and_comes_back(driver: _Driver) -> None:
    words, needs = cuda.suspend([1, 2, 9], 2 << 30)
    assert (words, needs) == ("", {"GPU-a": 2048})
    assert driver.states == {1: "checkpointed", 2: "checkpointed"}
    assert cuda.restore([1, 2, 9], needs) == ""
    assert driver.states == {1: "running", 2: "running"}


def test_what_does_not_fit_into_memory_stays_on_the_gpu(driver: _Driver) -> None:
    words, _ = cuda.suspend([1, 2, 9], 1 << 30)
    assert "2048 MiB are on the GPU" in words and "room for 1024 MiB" in words
    assert driver.states == {1: "running", 2: "running"}


@pytest.mark.parametrize("step", ["Lock", "Checkpoint"])
def test_a_step_that_fails_leaves_every_process_as_it_was(driver: _Driver, step: str) -> None:
    driver.failing.add((step, 2))
    assert cuda.suspend([1, 2], 2 << 30) == (f"{step} of process 2: CUDA_ERROR", {})
    assert driver.states == {1: "running", 2: "running"}


def test_nothing_is_restored_while_the_gpu_has_no_room_for_all(driver: _Driver) -> None:
    _, needs = cuda.suspend([1, 2], 2 << 30)
    driver.free = 2047
    assert cuda.restore([1, 2], needs) == (
        "2048 MiB are needed, but only 2047 MiB of the GPU are free"
    )
    assert driver.states == {1: "checkpointed", 2: "checkpointed"}
    driver.free = 2048
    assert cuda.restore([1, 2], needs) == ""
    assert driver.states == {1: "running", 2: "running"}


def test_what_was_restored_already_is_left_alone(driver: _Driver) -> None:
    cuda.suspend([1, 2], 2 << 30)
    driver.failing.add(("Restore", 2))
    assert cuda.restore([1, 2], {}) == "Restore of process 2: CUDA_ERROR"
    driver.failing.clear()
    assert cuda.restore([1, 2], {}) == ""
    assert driver.states == {1: "running", 2: "running"}


def test_a_host_without_a_driver_keeps_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(cuda, "CudaCheckpoint", absent)
    assert "cannot move it (libcuda.so.1" in cuda.suspend([1], 1 << 30)[0]
    assert cuda.restore([1], {}) == ""
