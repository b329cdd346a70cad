"""The decoding engine: writes many texts at once, which join and leave while it runs.

A call of `generate` makes tasks and passes them to `Engine.write`. The engine's thread takes them
between two steps, and prefills their prompts into free slots; equal prompts share a prefill. From
then on they are rows of every step. While the GPU runs the next steps, the thread reads the tokens
of earlier steps. A row ends at an end token, a stop text or its length; then its caller continues.

Slots cannot change parts of a block, or project out two directions at one place. The loop of
transformers writes such texts between two steps. `SEER_ENGINE` decides whether an engine is
used at all; see `docs/interfaces.md`.
"""

import logging
import os
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seer.errors import CallLimitError, ModelInputError

from ._batches import split
from ._graphs import Graphs
from ._limits import BATCH_TOKENS
from ._model import Model
from ._sampling import Settings, Way
from ._slots import (
    LENGTHS,
    ROWS,
    Bend,
    Fit,
    Slots,
    Start,
    Unfit,
    bucket,
    fit_slots,
    most_bent,
)
from ._steering import SteeringStep, bends_of, prompt_changes

_log = logging.getLogger(__name__)
_PREFILL = 8192
"""The most prompt tokens of one prefill. Texts that are being written wait for it."""
_USUAL_ROWS, _USUAL_LENGTH = 64, 1024
_MEMORY = 1 << 30
"""Bytes of cache on a machine without a GPU."""
_AHEAD = 3
"""Steps that are queued on the GPU before the first result is read."""
_PATIENCE = 4
"""Steps that a few requests may wait for others to join while many texts are being written."""
_EVERY = 4
"""Tokens between two searches for stop texts."""
_PAYS = 8
"""Close gaps between rows only if some row has at least this many tokens left to write."""
_AGAIN = 1.0
"""Seconds between attempts to get larger slots after memory ran out: each attempt takes time."""
_REST = 10.0
"""Seconds without work after which an engine's thread ends."""
_WAYS: tuple[Way, ...] = ("greedy", "drawn", "filtered")


@dataclass(frozen=True)
class Task:
    """One text to write."""

    row: list[int]
    seed: int
    steps: list[SteeringStep]
    settings: Settings


@dataclass(frozen=True)
class Written:
    """The tokens of a text, perhaps with some past its end, and their log-probabilities."""

    ids: list[int]
    logprobs: list[float]


@dataclass(eq=False)
class _Request:
    task: Task
    bends: dict[int, Bend]
    prompt: tuple[bytes, int]
    """Requests with equal keys share one prefill."""
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    slot: int = -1
    issued: int = 0
    """The number of its tokens that have been queued on the GPU."""
    error: Exception | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def total(self) -> int:
        """The number of tokens of the prompt and the longest possible text together."""
        return len(self.task.row) + self.task.settings.max_new_tokens

    @property
    def length(self) -> int:
        """The number of its tokens in the cache when all queued steps have run."""
        return len(self.task.row) + self.issued

    @property
    def left(self) -> int:
        """The number of its tokens that have not been queued on the GPU."""
        return self.task.settings.max_new_tokens - self.issued

    @property
    def placed(self) -> bool:
        """Whether a change applies to a single token of its prompt."""
        return any(step.position is not None for step in self.task.steps)


@dataclass(frozen=True)
class _Round:
    """A step that was queued on the GPU, and the tensor in which its tokens arrive."""

    written: Tensor
    rows: list[tuple[_Request, int]]
    arrived: Any

    def wait(self) -> None:
        if self.arrived is not None:
            self.arrived.synchronize()


class Engine:
    """Writes the texts of one model.

    Args:
        model: The model.
        ends: The tokens that end a text.
        plainly: Writes tasks with equal settings in the loop of transformers.

    Attributes:
        refused: Why the engine cannot write texts; empty if it can.
        graphs: The captured functions.
    """

    def __init__(
        self, model: Model, ends: set[int], plainly: Callable[[list[Task]], list[Written]]
    ) -> None:
        self._model = model
        self._ends = ends
        self._plainly = plainly
        self.graphs = Graphs(model.device, model.name)
        self.refused = ""
        self._fit = Fit([], [])
        try:
            self._fit = fit_slots(model)
        except Unfit as reason:
            self.refused = str(reason)
            _log.warning("%s: no decoding engine: %s", model.name, reason)
        self._share = cache_share()
        self._budget = 0 if self.refused else _budget(model, self._share)
        self._slots: Slots | None = None
        self._changed = threading.Condition()
        self._waiting: deque[_Request] = deque()
        self._plain: deque[_Request] = deque()
        self._active: list[_Request] = []
        self._rounds: deque[_Round] = deque()
        self._thread: threading.Thread | None = None
        self._held = 0
        """Steps for which waiting requests have been held back."""
        self._told = False
        self._full_until = 0.0
        """When larger slots may be tried again."""

    # --- for callers -----------------------------------------------------------------------------

    def write(self, tasks: Sequence[Task]) -> list[Written]:
        """Write texts, and return when all are written.

        Raises:
            CallLimitError: There is not enough memory for a text.
        """
        known: dict[int, dict[int, Bend] | None] = {}
        requests = [self._request(task, known) for task in tasks]
        with self._changed:
            for one, waits_plainly in requests:
                (self._plain if waits_plainly else self._waiting).append(one)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_work, args=(weakref.ref(self),), name="seer-engine", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
        try:
            for one, _ in requests:
                # Wait in short pieces, because a thread can only be interrupted between them.
                while not one.over.wait(0.1):
                    pass
        except BaseException:
            for one, _ in requests:
                one.over.set()
            raise
        errors = [one.error for one, _ in requests if one.error is not None]
        if errors:
            raise errors[0]
        return [Written(one.ids, one.logprobs) for one, _ in requests]

    def prepare(self, rows: int, length: int) -> None:
        """Capture the steps of up to this many rows of up to this length ahead of time."""
        if self.refused:
            return
        with self._model.turn:
            slots = self._reshape(*self._shape(rows, length))
            for many in [size for size in ROWS if size <= bucket(ROWS, rows)]:
                for long in [size for size in LENGTHS if size <= bucket(LENGTHS, length)]:
                    for way in _WAYS[:2]:
                        for _ in range(2):
                            slots.run(rows=min(many, slots.rows), length=long, way=way, bent="no")

    def _request(
        self, task: Task, known: dict[int, dict[int, Bend] | None]
    ) -> tuple[_Request, bool]:
        """A request, and whether it needs the plain loop; `known` caches that for equal steps."""
        if id(task.steps) not in known:
            known[id(task.steps)] = None if self.refused else bends_of(self._model, task.steps)
        bends = known[id(task.steps)]
        if bends is None and not self.refused and not self._told:
            self._told = True
            _log.warning(
                "%s: steering of parts of blocks, or along several directions at one place, is "
                "written without the decoding engine",
                self._model.name,
            )
        prompt = array("q", task.row).tobytes(), id(task.steps) if task.steps else 0
        return _Request(task, bends or {}, prompt), bends is None

    # --- the thread ------------------------------------------------------------------------------

    def work(self) -> bool:
        """Do the next piece of work, or wait for it. Returns whether to call this again."""
        with self._changed:
            if not (self._waiting or self._plain or self._active or self._rounds) and (
                not self._changed.wait_for(lambda: self._waiting or self._plain, _REST)
            ):
                self._thread = None
                return False
        try:
            with self._model.turn, torch.no_grad():
                self._leave()
                if self._plain:
                    self._write_plainly()
                self._join()
                self._issue()
            # Outside of the turn, so that other threads can run the model.
            if self._rounds and (len(self._rounds) >= _AHEAD or not self._to_run()):
                self._look()
        except Exception as error:
            self._fail(error)
        else:
            return True
        # Outside of the handler: the error holds tensors.
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()
        return True

    def _fail(self, error: Exception) -> None:
        """Fail all calls, because the data on the GPU may be corrupt."""
        if _is_full(error):
            error = self._full(_first_line(error))
        with self._changed:
            concerned = [*self._active, *self._waiting, *self._plain]
            self._active = []
            self._waiting.clear()
            self._plain.clear()
        self._rounds.clear()
        self._slots = None
        self.graphs.forget()
        for one in concerned:
            one.error = error
            one.over.set()

    def _write_plainly(self) -> None:
        """Write texts that slots cannot write. Texts with equal settings are written together."""
        with self._changed:
            settings = self._plain[0].task.settings
            group = [one for one in self._plain if one.task.settings == settings]
            for one in group:
                self._plain.remove(one)
        group = [one for one in group if not one.over.is_set()]
        for part in split(group, lambda one: one.total, BATCH_TOKENS):
            try:
                found = self._plainly([one.task for one in part])
            except Exception as error:
                for one in part:
                    one.error = error
            else:
                for one, written in zip(part, found, strict=True):
                    one.ids, one.logprobs = written.ids, written.logprobs
            for one in part:
                one.over.set()

    # --- joining and leaving ---------------------------------------------------------------------

    def _leave(self) -> None:
        """Drop rows that have ended or have no caller, and close gaps between the others."""
        self._active = [one for one in self._active if not one.over.is_set()]
        slots = self._slots
        if slots is None or not self._active:
            return
        count = len(self._active)
        last = max(one.slot for one in self._active)
        pays = max(one.left for one in self._active) >= _PAYS
        if pays and bucket(ROWS, count) < bucket(ROWS, last + 1):
            taken = {one.slot for one in self._active}
            free = (slot for slot in range(count) if slot not in taken)
            moved = [one for one in self._active if one.slot >= count]
            moves = {one.slot: next(free) for one in moved}
            slots.move(moves, max(one.length for one in moved))
            for one in moved:
                one.slot = moves[one.slot]

    def _join(self) -> None:
        with self._changed:
            self._waiting = deque(one for one in self._waiting if not one.over.is_set())
        if self._waiting and self._hold():
            self._held += 1
            return
        self._held = 0
        while self._waiting:
            slots = self._room()
            if slots is None:
                return
            group = self._next_group(slots)
            taken = {one.slot for one in self._active}
            free = [slot for slot in range(slots.rows) if slot not in taken]
            for one, slot in zip(group, free, strict=False):
                one.slot = slot
            self._active += group
            self._begin_or_fail(slots, group)

    def _hold(self) -> bool:
        """Whether a few requests should wait for more: a prefill stops all running texts."""
        written = len(self._active)
        few = len(self._waiting) < written // 8
        return few and self._held < min(_PATIENCE, written // 16)

    def _next_group(self, slots: Slots) -> list[_Request]:
        """The first waiting requests that fit and may be prefilled together."""
        room = slots.rows - len(self._active)
        group: list[_Request] = []
        seen: set[tuple[bytes, int]] = set()
        longest = 0
        with self._changed:
            while self._waiting and len(group) < room:
                one = self._waiting[0]
                longest = max(longest, len(one.task.row))
                wide = one.total > slots.length
                full = longest * (len(seen) + (one.prompt not in seen)) > _PREFILL
                other = group and one.placed != group[0].placed
                if wide or other or (group and full):
                    break
                seen.add(one.prompt)
                group.append(self._waiting.popleft())
        return group

    def _begin_or_fail(self, slots: Slots, group: list[_Request]) -> None:
        """Prefill, in smaller groups if memory runs out. Fail only what does not fit alone."""
        try:
            self._begin(slots, group)
            return
        except Exception as error:
            if not _is_full(error):
                raise
            reason = _first_line(error)
        # Outside of the handler: the error holds tensors.
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()
        half = len(group) // 2
        if half:
            self._begin_or_fail(slots, group[:half])
            self._begin_or_fail(slots, group[half:])
        else:
            group[0].error = self._full(reason)
            group[0].over.set()

    def _full(self, reason: str) -> CallLimitError:
        return CallLimitError(
            f"the GPU has no memory left for writing texts ({reason}); lower SEER_CACHE_SHARE (now "
            f"{self._share:g}), or ask for fewer or shorter texts"
        )

    def _begin(self, slots: Slots, group: Sequence[_Request]) -> None:
        starts: dict[tuple[bytes, int], list[_Request]] = {}
        for one in group:
            starts.setdefault(one.prompt, []).append(one)
        same = list(starts.values())
        ordered = [one for ones in same for one in ones]
        changes = None
        if group[0].placed:
            longest = max(len(ones[0].task.row) for ones in same)
            changes = prompt_changes([ones[0].task.steps for ones in same], longest)
        slots.begin(
            [Start(ones[0].task.row, [one.slot for one in ones]) for ones in same],
            [one.task.seed for one in ordered],
            [one.task.settings for one in ordered],
            [one.bends for one in ordered],
            changes,
        )

    def _room(self) -> Slots | None:
        """Slots with room for the first waiting request; None if others must leave first."""
        while self._waiting:
            need = self._waiting[0].total
            slots = self._slots
            if slots is not None and need <= slots.length and len(self._active) < slots.rows:
                return slots
            rows = len(self._active) + len(self._waiting)
            longest = max([need, *(one.total for one in self._active)])
            shape = self._shape(rows, longest)
            if slots is not None and need <= slots.length and shape <= (slots.rows, slots.length):
                return None
            if self._shape(1, longest)[0] < 1:
                self._refuse_first(
                    f"needs more memory than its cache may take ({self._budget / 1e9:.1f} GB);"
                    f" raise SEER_CACHE_SHARE (now {self._share:g}), or ask for fewer tokens"
                )
                continue
            if shape[0] <= len(self._active):
                return None
            if self._active and time.monotonic() < self._full_until:
                return None
            try:
                return self._reshape(*shape)
            except torch.OutOfMemoryError as error:
                reason = _first_line(error)
            # Outside of the handler: the error holds tensors from before memory ran out.
            self._full_until = time.monotonic() + _AGAIN
            if self._active:
                return None
            try:
                return self._reshape(1, bucket(LENGTHS, longest))
            except torch.OutOfMemoryError:
                pass
            self._refuse_first(
                f"finds no memory on the GPU ({reason}); others use what the cache may take "
                f"(SEER_CACHE_SHARE, now {self._share:g}): ask for fewer tokens, or try again later"
            )
        return None

    def _refuse_first(self, why: str) -> None:
        """Fail the first waiting request."""
        one = self._waiting.popleft()
        one.error = CallLimitError(f"a text of {one.total} tokens {why}")
        one.over.set()

    def _shape(self, rows: int, length: int) -> tuple[int, int]:
        """The number and length of rows that fit the budget, for this many wanted rows."""
        size = sum(heads * (key + value) for heads, key, value in self._fit.shapes)
        tokens = self._budget // (size * self._model.net.dtype.itemsize)
        rows = bucket(ROWS, max(rows, _USUAL_ROWS))
        need = bucket(LENGTHS, length)
        usual = max(need, _USUAL_LENGTH)
        if tokens // usual >= rows:
            return rows, usual
        return min(rows, tokens // need), need

    def _reshape(self, rows: int, length: int) -> Slots:
        """Make slots of another shape, and move the rows that are being written to them.

        Raises:
            OutOfMemoryError: They do not fit. The old slots are kept if they had rows.
        """
        if self._slots is not None and (self._slots.rows, self._slots.length) == (rows, length):
            return self._slots
        if not self._active:
            # Free the old slots first, so that both are not in memory together.
            self._slots = None
        slots = Slots(self._model, self.graphs, self._fit, rows, length)
        if self._slots is not None:
            places = {one.slot: (i, one.length) for i, one in enumerate(self._active)}
            slots.take(self._slots, places)
            for i, one in enumerate(self._active):
                one.slot = i
        self._slots = slots
        return slots

    # --- steps -----------------------------------------------------------------------------------

    def _to_run(self) -> list[_Request]:
        return [one for one in self._active if one.left > 0 and not one.over.is_set()]

    def _issue(self) -> None:
        """Queue the next step on the GPU."""
        rows, slots = self._to_run(), self._slots
        if not rows or slots is None:
            return
        written = slots.run(
            rows=max(one.slot for one in rows) + 1,
            length=min(max(one.length for one in rows) + 1, slots.length),
            way=_WAYS[max(_WAYS.index(one.task.settings.way) for one in rows)],
            bent=most_bent(one.bends for one in rows),
        )
        self._rounds.append(
            _Round(_arriving(written), [(one, one.slot) for one in rows], _mark(written))
        )
        for one in rows:
            one.issued += 1

    def _look(self) -> None:
        """Read the tokens of the oldest round, and finish the texts that are done."""
        found = self._rounds.popleft()
        found.wait()
        ids, logprobs = found.written.tolist()
        for one, slot in found.rows:
            if one.over.is_set():
                continue
            token = int(ids[slot])
            one.ids.append(token)
            one.logprobs.append(logprobs[slot])
            full = len(one.ids) >= one.task.settings.max_new_tokens
            if full or token in self._ends or self._stops(one):
                one.over.set()

    def _stops(self, one: _Request) -> bool:
        """Whether a stop text has occurred. Searches every few tokens; the caller cuts the text."""
        stops = one.task.settings.stop
        if not stops or len(one.ids) % _EVERY:
            return False
        # Tokens may be single bytes, and the first tokens of a piece may be parts of a character.
        tail = one.ids[-(2 * _EVERY + max(len(stop.encode()) for stop in stops)) :]
        text = str(self._model.tokenizer.decode(tail, skip_special_tokens=True))
        return any(stop in text for stop in stops)


def _work(engine: "weakref.ref[Engine]") -> None:
    while (own := engine()) is not None and own.work():
        del own


def _arriving(values: Tensor) -> Tensor:
    """A copy on the host; on a GPU, it is complete when the round's event has passed."""
    if values.device.type != "cuda":
        return values.clone()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)


def _mark(values: Tensor) -> Any:
    if values.device.type != "cuda":
        return None
    event: Any = torch.cuda.Event()
    event.record()
    return event


def _is_full(error: Exception) -> bool:
    """Whether an error means that the GPU is out of memory. Libraries report this differently."""
    return isinstance(error, torch.OutOfMemoryError) or "ALLOC_FAILED" in str(error)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


# --- settings ------------------------------------------------------------------------------------


def cache_share() -> float:
    """The share of the free GPU memory that caches may take.

    Raises:
        ModelInputError: `SEER_CACHE_SHARE` is not a number between 0 and 1.
    """
    said = os.environ.get("SEER_CACHE_SHARE", "0.4")
    try:
        share = float(said)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise ModelInputError(f"SEER_CACHE_SHARE={said!r}: must be between 0 and 1, like 0.4")
    return share


def _budget(model: Model, share: float) -> int:
    if model.device.type != "cuda":
        return _MEMORY
    free, _total = torch.cuda.mem_get_info(model.device)
    return int(free * share)
