"""Runs functions over static tensors: as CUDA graphs on a GPU, and directly otherwise.

A function takes its inputs from tensors with fixed addresses, and leaves its results in such
tensors. The first run of a key is a plain run, which also warms up PyTorch; the second run is
captured. So no function runs only to be captured. A function that cannot be captured (it waits for
the GPU, or changes its shapes) stays plain, and one log line says so.
"""

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Literal

import torch
from torch import Tensor

from seer.errors import ModelInputError

_log = logging.getLogger(__name__)
_MOST = 96
"""The number of graphs to keep; the least recently used graph is dropped first."""


def engine_use() -> Literal["off", "batches", "joining"]:
    """Whether texts are written by an engine, and whether calls join it one by one.

    Raises:
        ModelInputError: `SEER_ENGINE` has an unknown value.
    """
    said = os.environ.get("SEER_ENGINE", "auto")
    if said == "auto":
        return "joining" if torch.cuda.is_available() else "off"
    if said not in ("off", "batches", "joining"):
        raise ModelInputError(
            f"SEER_ENGINE={said!r}: must be 'auto', 'off', 'batches' or 'joining'"
        )
    return said


class Graphs:
    """The captured functions of one model.

    Attributes:
        captured: The number of captured functions.
        seconds: The total time that capturing took.
    """

    def __init__(self, device: torch.device, what: str) -> None:
        self.captured = 0
        self.seconds = 0.0
        self._what = what
        self._on = device.type == "cuda"
        self._device = device
        self._known: OrderedDict[Hashable, Any] = OrderedDict()
        """Per key: None after the plain run, then a graph, or False if it cannot be captured."""
        self._failed = False
        self._pool: Any = None
        self._side: Any = None

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        """Run a function. Equal keys must mean the same function over the same tensors."""
        if not self._on:
            function()
            return
        known = self._known.get(key, "new")
        if known is None:
            known = self._known[key] = self._capture(key, function)
        if known == "new":
            self._known[key] = None
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
                if not any(self._known.values()):
                    self._pool = None
        else:
            self._known.move_to_end(key)
        if known in ("new", False):
            function()
        else:
            known.replay()

    def forget(self) -> None:
        """Drop all graphs, because the tensors that they use are about to be freed."""
        self._known.clear()
        # The last graph frees its memory pool.
        self._pool = None

    def _capture(self, key: Hashable, function: Callable[[], None]) -> Any:
        cuda: Any = torch.cuda
        begin = time.monotonic()
        if self._side is None:
            self._side = cuda.Stream(self._device)
        if self._pool is None:
            self._pool = cuda.graph_pool_handle()
        graph = cuda.CUDAGraph()
        self._side.wait_stream(cuda.current_stream())
        try:
            with cuda.stream(self._side):
                # Other threads may copy to the GPU meanwhile.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    function()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            self._recover()
            self._tell(key, error)
            return False
        except BaseException:
            # The call was interrupted: the next call captures again.
            self._recover()
            raise
        cuda.current_stream().wait_stream(self._side)
        self.captured += 1
        self.seconds += time.monotonic() - begin
        return graph

    def _recover(self) -> None:
        cuda: Any = torch.cuda
        cuda.synchronize()
        _free_generator(self._device)
        _free_pool(self._device, self._pool)
        self._pool = None

    def _tell(self, key: Hashable, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            reason = str(error).strip().partition("\n")[0]
            _log.warning("%s: %s is not captured as a CUDA graph: %s", self._what, key, reason)


def _free_generator(device: torch.device) -> None:
    """Give PyTorch's generator a new state after a failed capture, which leaves it unusable."""
    cuda: Any = torch.cuda
    own = cuda.default_generators[device.index or 0]
    fresh: Any = torch.Generator(device)
    fresh.manual_seed(own.initial_seed())
    own.graphsafe_set_state(fresh.graphsafe_get_state())


def _free_pool(device: torch.device, pool: Any) -> None:
    """End the allocation to a memory pool that a failed capture began in PyTorch's allocator.

    PyTorch itself ends it only after a successful capture. Until then, it frees no memory.
    """
    own: Any = getattr(torch, "_C", None)
    end = getattr(own, "_cuda_endAllocateToPool", None)
    release = getattr(own, "_cuda_releasePool", None)
    if end is None or release is None:
        return
    # PyTorch raises RuntimeError if the capture had already ended.
    with suppress(RuntimeError):
        end(device.index or 0, pool)
        release(device.index or 0, pool)


def on_device(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make a tensor of numbers on a device, without waiting for the device."""
    cuda = device.type == "cuda"
    host = torch.as_tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if cuda else host.to(device)
