"""The decoding engine gives the same texts as transformers, whatever else runs."""

# torch, scipy and scikit-learn are annotated in part only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer.errors import CallLimitError, ModelInputError
from tests.interfaces.conftest import TEXTS, Case
from tests.interfaces.test_architectures import make as make_architecture

pytestmark = pytest.mark.full

DIRECTION = np.linspace(-1, 1, 32, dtype=np.float32)
STEERED: list[list[dict[str, Any]]] = [
    [{"layer": 2, "direction": DIRECTION, "scale": 4.0}],
    [{"layer": 1, "direction": DIRECTION}, {"mode": "project_out", "direction": DIRECTION}],
    [{"layer": 2, "mode": "ablate"}, {"layer": 2, "direction": DIRECTION, "scale": 2.0}],
    [{"layer": 0, "direction": DIRECTION, "position": 1, "scale": 3.0}],
]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.2, "seed": 3},
    {"temperature": 0.9, "seed": 4, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.0, "seed": 2**40 + 5, "repetition_penalty": 1.7},
    {"repetition_penalty": 1.7},
    *({"steering": steering, "seed": 1, "temperature": 1.0} for steering in STEERED),
]


def same(found: Any, expected: Any) -> None:
    assert found.ids == expected.ids
    assert (found.text, found.finish) == (expected.text, expected.finish)
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def write(tools: Any, call: dict[str, Any]) -> Any:
    return tools.generate(**call)


def nothing(_tasks: Any) -> list[Any]:
    return []


def engine_of(case: Case, model: str | None = None) -> Any:
    names = case.tools.module.generate.__globals__
    return names["engine_of"](names["find"](model))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switches the engine on and off."""
    return lambda use: monkeypatch.setenv("SEER_ENGINE", "batches" if use else "off")


def test_texts_are_the_same_with_the_engine(case: Case, on: Callable[[bool], None]) -> None:
    for settings in SETTINGS:
        call = {"max_new_tokens": 10, **settings}
        on(False)
        expected = case.tools.generate(TEXTS[0], **call)
        on(True)
        assert engine_of(case).refused == ""
        same(case.tools.generate(TEXTS[0], **call), expected)


def test_batches_of_the_engine_are_the_same_as_single_calls(
    llama: Case, on: Callable[[bool], None]
) -> None:
    on(True)
    calls = [
        {"prompt": text, "seed": i, "steering": steering, "temperature": 1.0, "max_new_tokens": 9}
        for i, (text, steering) in enumerate(zip(TEXTS, STEERED, strict=True))
    ]
    llama.tools.check_batch("generate", calls, atol=1e-4)


def test_calls_that_join_and_leave_get_their_own_texts(
    case: Case, on: Callable[[bool], None]
) -> None:
    calls = [
        {
            "prompt": TEXTS[i % 4],
            "max_new_tokens": 1 + 5 * (i % 5),
            **SETTINGS[i % len(SETTINGS)],
        }
        for i in range(24)
    ]
    on(False)
    expected = [case.tools.generate(**call) for call in calls]
    on(True)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(partial(write, case.tools), calls))
    for one, other in zip(found, expected, strict=True):
        same(one, other)


def test_a_short_text_does_not_wait_for_a_long_one(llama: Case, on: Callable[[bool], None]) -> None:
    on(True)
    engine = engine_of(llama)
    names = llama.tools.module.generate.__globals__
    task, settings = names["Task"], names["Settings"]
    # Without end tokens, it is as long as it may be.
    endless = type(engine)(engine._model, set(), nothing)
    row = llama.ids(TEXTS[0])[0].tolist()

    def slow(_module: Any, _args: Any) -> None:
        # Makes the long one take seconds, because this thread may have to wait for a core
        # meanwhile.
        time.sleep(0.01)

    hook = endless._model.net.register_forward_pre_hook(slow)
    try:
        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(endless.write, [task(row, 0, [], settings(200))])
            (short,) = endless.write([task(row[:3], 0, [], settings(2))])
            assert len(short.ids) == 2
            assert not long.done()
            assert len(long.result(timeout=60)[0].ids) == 200
    finally:
        hook.remove()


def test_stop_texts_end_texts_of_the_engine(llama: Case, on: Callable[[bool], None]) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 24, "seed": 7}
    on(True)
    whole = llama.tools.generate(TEXTS[1], **settings)
    tokens = [llama.tokenizer.decode([i]) for i in whole.ids]
    stop = next(token for token in tokens[8:] if token.isascii() and token.strip())
    cut = llama.tools.generate(TEXTS[1], stop=(stop,), **settings)
    assert (cut.text, cut.finish) == (whole.text[: whole.text.index(stop)], "stop")
    assert len(cut.ids) == len(cut.logprobs) < len(whole.ids)
    on(False)
    same(cut, llama.tools.generate(TEXTS[1], stop=(stop,), **settings))


def test_one_prompt_sampled_many_times_is_prefilled_once(
    llama: Case, on: Callable[[bool], None]
) -> None:
    on(False)
    expected = llama.tools.sample(TEXTS[2], 6, seed=3, max_new_tokens=6)
    on(True)
    engine = engine_of(llama)
    seen: list[tuple[int, ...]] = []

    def see(_module: Any, _args: Any, kwargs: Any) -> None:
        seen.append(tuple(kwargs["input_ids"].shape))

    hook = engine._model.net.register_forward_pre_hook(see, with_kwargs=True)
    try:
        found = llama.tools.sample(TEXTS[2], 6, seed=3, max_new_tokens=6)
    finally:
        hook.remove()
    for one, other in zip(found, expected, strict=True):
        same(one, other)
    prefills = [shape for shape in seen if shape[1] > 1]
    assert [rows for rows, _ in prefills] == [1]


def test_what_does_not_fit_at_once_waits(
    llama: Case, on: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(True)
    engine = engine_of(llama)
    size = sum(heads * (key + value) for heads, key, value in engine._fit.shapes) * 4
    monkeypatch.setattr(engine, "_budget", 2 * 256 * size)
    monkeypatch.setattr(engine, "_slots", None)
    calls = [{"prompt": t, "seed": i, "max_new_tokens": 6} for i, t in enumerate(TEXTS * 2)]
    llama.tools.check_batch("generate", calls, atol=1e-4)
    assert engine._slots.rows == 2
    monkeypatch.setattr(engine, "_budget", 100 * size)
    monkeypatch.setattr(engine, "_slots", None)
    with pytest.raises(CallLimitError, match="raise SEER_CACHE_SHARE"):
        llama.tools.generate(TEXTS[0], max_new_tokens=6)
    monkeypatch.undo()
    on(True)
    monkeypatch.setattr(engine, "_slots", None)
    assert llama.tools.generate(TEXTS[0], max_new_tokens=6).ids


def test_rows_that_are_being_written_move_into_larger_slots(
    llama: Case, on: Callable[[bool], None]
) -> None:
    on(True)
    engine = engine_of(llama)
    names = llama.tools.module.generate.__globals__
    task, settings = names["Task"], names["Settings"]
    row = llama.ids(TEXTS[0])[0].tolist()
    fresh = type(engine)(engine._model, set(), nothing)
    (alone,) = fresh.write([task(row, 1, [], settings(120, temperature=1.0))])
    fresh = type(engine)(engine._model, set(), nothing)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(fresh.write, [task(row, 1, [], settings(120, temperature=1.0))])
        many = fresh.write([task(row[:2], i, [], settings(3)) for i in range(100)])
        assert all(len(one.ids) == 3 for one in many)
        moved = long.result(timeout=60)[0]
    assert fresh._slots.rows >= 100
    assert moved.ids == alone.ids
    assert moved.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_a_failure_is_everybodys_and_the_next_call_works(
    llama: Case, on: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(True)
    engine = engine_of(llama)
    expected = llama.tools.generate(TEXTS[0], max_new_tokens=4)

    def broken(**_options: Any) -> Any:
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(engine._slots, "run", broken)
        with pytest.raises(RuntimeError, match="the device is gone"):
            llama.tools.generate(TEXTS[0], max_new_tokens=4)
    same(llama.tools.generate(TEXTS[0], max_new_tokens=4), expected)


def test_a_call_that_is_given_up_leaves(llama: Case, on: Callable[[bool], None]) -> None:
    on(True)
    engine = engine_of(llama)
    names = llama.tools.module.generate.__globals__
    task, settings = names["Task"], names["Settings"]
    endless = type(engine)(engine._model, set(), nothing)
    row = llama.ids(TEXTS[0])[0].tolist()

    class Given(BaseException):
        pass

    class Impatient:
        def wait(self, _seconds: float) -> bool:
            raise Given

        def set(self) -> None:
            over.set()

        def is_set(self) -> bool:
            return over.is_set()

    over = threading.Event()
    request = endless._request

    def impatient(one: Any, known: Any) -> Any:
        made, plainly = request(one, known)
        made.over = Impatient()
        return made, plainly

    endless._request = impatient
    with pytest.raises(Given):
        endless.write([task(row, 0, [], settings(200))])
    endless._request = request
    assert over.is_set()
    assert len(endless.write([task(row, 0, [], settings(2))])[0].ids) == 2
    assert endless._active == [] or all(one.over.is_set() for one in endless._active)


def test_calls_do_not_wait_for_the_models_turn(llama: Case, on: Callable[[bool], None]) -> None:
    """Otherwise the engine would take turns with each of them, while its GPU is idle."""
    on(True)
    engine = engine_of(llama)
    with engine._model.turn, ThreadPoolExecutor(1) as pool:
        assert pool.submit(engine_of, llama).result(timeout=60) is engine


def tasks_of(case: Case, count: int, length: int, steering: list[Any]) -> list[Any]:
    """Tasks of one prompt, of this length."""
    names = case.tools.module.generate.__globals__
    row = case.ids(TEXTS[0])[0].tolist()
    steps = names["check_steering"](names["find"](None), steering, len(row))
    settings = names["Settings"](length, temperature=1.0)
    return [names["Task"](row[: 3 + i % 4], i, steps, settings) for i in range(count)]


def steering_of(case: Case, fields: list[dict[str, Any]]) -> list[Any]:
    names = case.tools.module.generate.__globals__
    return [names["Steering"](**one) for one in fields]


@pytest.mark.parametrize("fields", [[], *STEERED[:3]])
def test_rows_that_are_left_move_together(
    fields: list[dict[str, Any]], llama: Case, on: Callable[[bool], None]
) -> None:
    on(True)
    engine = engine_of(llama)
    steering = steering_of(llama, fields)
    long = tasks_of(llama, 12, 30, steering)[9:]
    alone = [type(engine)(engine._model, set(), nothing).write([one])[0] for one in long]
    endless = type(engine)(engine._model, set(), nothing)
    found = endless.write([*tasks_of(llama, 9, 2, []), *long])[9:]
    moved = [request.slot for request in endless._active]
    assert max(moved, default=0) < 3
    for one, other in zip(found, alone, strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_steered_and_plain_prompts_are_prefilled_together(
    llama: Case, on: Callable[[bool], None]
) -> None:
    on(True)
    engine = engine_of(llama)
    tasks = [
        tasks_of(llama, i + 1, 8, steering_of(llama, fields))[i]
        for i, fields in enumerate([[], *STEERED[:3]])
    ]
    alone = [type(engine)(engine._model, set(), nothing).write([one])[0] for one in tasks]
    endless = type(engine)(engine._model, set(), nothing)
    seen: list[int] = []

    def see(_module: Any, _args: Any, kwargs: Any) -> None:
        seen.append(kwargs["input_ids"].shape[1])

    hook = engine._model.net.register_forward_pre_hook(see, with_kwargs=True)
    try:
        found = endless.write(tasks)
    finally:
        hook.remove()
    assert sum(tokens > 1 for tokens in seen) == 1
    for one, other in zip(found, alone, strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_norms_take_one_kernel_where_that_computes_the_same(
    case: Case, on: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(True)
    model = engine_of(case)._model
    for module in model.net.modules():
        # nnsight sets `forward` on modules that it has traced, and the engine leaves those as they
        # are.
        monkeypatch.delitem(vars(module), "forward", raising=False)
    engine = type(engine_of(case))(model, set(), nothing)
    # Gemma's norms multiply by one plus their weights; GPT-2 has no RMS norms.
    expected = {"llama": 7, "qwen2": 7}.get(case.architecture, 0)
    assert len(engine._fit.norms) == expected
    assert engine.write(tasks_of(case, 1, 3, []))
    # A step that is still running has its turn.
    with model.turn:
        assert not any("forward" in vars(norm) for norm in engine._fit.norms)


def test_a_full_gpu_fails_one_call_and_no_other(
    llama: Case, on: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    on(True)
    engine = engine_of(llama)
    endless = type(engine)(engine._model, set(), nothing)
    (expected,) = endless.write(tasks_of(llama, 1, 4, []))
    made = type(endless).work.__globals__["Slots"]

    tries: list[float] = []

    def full(*_arguments: Any) -> None:
        tries.append(time.monotonic())
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")

    monkeypatch.setitem(type(endless).work.__globals__, "Slots", full)
    rows = endless._slots.rows
    many = tasks_of(llama, rows + 5, 4, [])
    # There is no memory for larger slots, so some tasks wait until others are written.
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(endless.write, tasks_of(llama, 1, 150, []))
        while not endless._active:
            pass
        assert [len(one.ids) for one in endless.write(many)] == [4] * len(many)
        assert len(long.result(timeout=60)[0].ids) == 150
    # The engine does not try to get them at every step.
    assert all(after - before > 0.9 for before, after in pairwise(tries))
    # If there are no slots at all, the call that needs them fails.
    monkeypatch.setattr(endless, "_slots", None)
    with pytest.raises(CallLimitError, match="SEER_CACHE_SHARE"):
        endless.write(tasks_of(llama, 1, 4, []))
    monkeypatch.setitem(type(endless).work.__globals__, "Slots", made)
    assert endless.write(tasks_of(llama, 1, 4, []))[0].ids == expected.ids


@pytest.mark.parametrize(
    "message", ["CUDA out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"]
)
def test_prompts_for_which_memory_runs_out_are_prefilled_in_smaller_groups(
    message: str, llama: Case, on: Callable[[bool], None]
) -> None:
    import torch

    on(True)
    engine = engine_of(llama)
    tasks = tasks_of(llama, 7, 5, [])
    alone = [type(engine)(engine._model, set(), nothing).write([one])[0] for one in tasks]
    endless = type(engine)(engine._model, set(), nothing)
    begin = endless._begin
    kind = torch.OutOfMemoryError if message.endswith("memory") else RuntimeError
    most = 2

    def full(slots: Any, group: Any) -> None:
        if len(group) > most:
            raise kind(message)
        begin(slots, group)

    endless._begin = full
    found = endless.write(tasks)
    assert [one.ids for one in found] == [one.ids for one in alone]
    with ThreadPoolExecutor(1) as pool:
        writing = tasks_of(llama, 1, 150, [])
        long = pool.submit(endless.write, writing)
        # The list may still have rows that were written before.
        while not any(one.ids for one in endless._active if one.task is writing[0]):
            pass
        # Not even one fits; the rows that are being written continue.
        most = 0
        with pytest.raises(CallLimitError, match="SEER_CACHE_SHARE"):
            endless.write(tasks)
        assert len(long.result(timeout=60)[0].ids) == 150


@pytest.mark.parametrize("use", [False, True])
def test_hostile_arguments_are_refused_by_name(
    use: bool, llama: Case, on: Callable[[bool], None]
) -> None:
    on(use)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("max_new_tokens=2000000000: one call may ask for 2048", {"max_new_tokens": 2 * 10**9}),
        ("max_new_tokens=0: must be at least 1", {"max_new_tokens": 0}),
        ("the length of a stop text=0: must be at least 1", {"stop": ("",)}),
        ("the length of a stop text=1000000: one call may ask for", {"stop": ("x" * 10**6,)}),
        ("stop=1000: one call may ask for", {"stop": ("x",) * 1000}),
        ("temperature=nan", {"temperature": float("nan")}),
        ("seed=-1", {"seed": -1}),
        ("has no tokens", {"prompt": []}),
        ("token ids must be", {"prompt": [10**9]}),
        ("token ids must be", {"prompt": [-1]}),
        ("the prompt has", {"prompt": [3] * 100_000}),
    ]
    for message, call in calls:
        with pytest.raises(ValueError, match=message):
            llama.tools.generate(**{"prompt": TEXTS[0], **call})
    for count in (0, 65, 10**12):
        with pytest.raises(ValueError, match=f"count={count}"):
            llama.tools.sample(TEXTS[0], count)
    assert llama.tools.generate(TEXTS[0], max_new_tokens=2).ids


@pytest.mark.parametrize("use", [False, True])
def test_a_temperature_next_to_zero_takes_the_likeliest_token(
    use: bool, llama: Case, on: Callable[[bool], None]
) -> None:
    on(use)
    expected = llama.tools.generate(TEXTS[0], max_new_tokens=8)
    for temperature in (1e-300, 1e-38, 1e-8):
        found = llama.tools.generate(
            TEXTS[0], max_new_tokens=8, temperature=temperature, top_p=0.9, seed=3
        )
        same(found, expected)


def test_stop_texts_that_never_come_change_nothing(llama: Case, on: Callable[[bool], None]) -> None:
    on(True)
    settings: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 40, "seed": 7}
    whole = llama.tools.generate(TEXTS[1], **settings)
    never = tuple(f"{i}" + "\N{SNOWMAN}" * 100 for i in range(16))
    same(llama.tools.generate(TEXTS[1], stop=never, **settings), whole)


def test_steering_that_slots_cannot_do_is_written_plainly(
    llama: Case, on: Callable[[bool], None], caplog: pytest.LogCaptureFixture
) -> None:
    other = DIRECTION[::-1].copy() ** 3
    steerings: list[list[dict[str, Any]]] = [
        [{"layer": 2, "stream": "mlp", "mode": "ablate"}],
        [
            {"layer": 2, "mode": "project_out", "direction": DIRECTION},
            {"layer": 2, "mode": "project_out", "direction": other},
        ],
    ]
    engine = None
    for steering in steerings:
        on(False)
        expected = llama.tools.generate(TEXTS[0], steering=steering, max_new_tokens=6)
        on(True)
        engine = engine_of(llama)
        engine._told = False
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            found = llama.tools.generate(TEXTS[0], steering=steering, max_new_tokens=6)
            again = llama.tools.generate(TEXTS[0], steering=steering, max_new_tokens=6)
        same(found, expected)
        same(again, expected)
        lines = [r.message for r in caplog.records if "without the decoding engine" in r.message]
        assert len(lines) == 1


@pytest.mark.parametrize(
    ("architecture", "settings", "slots"),
    [
        ("gemma3_text", {"query_pre_attn_scalar": 8, "sliding_window": 8}, True),
        ("mistral", {"sliding_window": 8}, True),
        ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32}, True),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, True),
        ("gptj", {"rotary_dim": 4, "n_embd": 32, "n_layer": 3, "n_head": 4}, True),
        ("bloom", {}, False),
    ],
)
def test_every_architecture_writes_the_same_text(
    architecture: str,
    settings: dict[str, Any],
    slots: bool,
    tmp_path: Path,
    on: Callable[[bool], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from seer import interfaces
    from seer.testing import load_interface

    size = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    more = {"intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8}
    if architecture in ("gptj", "bloom", "opt"):
        more = {}
    folder = tmp_path / architecture
    make_architecture(folder, architecture, {**size, **more, **settings})
    tools: Any = load_interface(interfaces.blackbox, models={"m": str(folder)})
    calls = [
        {"prompt": text, "seed": i, "max_new_tokens": 12, "temperature": 1.0}
        for i, text in enumerate(TEXTS)
    ]
    on(False)
    expected = [tools.generate(**call) for call in calls]
    on(True)
    names = tools.module.generate.__globals__
    with caplog.at_level(logging.WARNING):
        engine = names["engine_of"](names["find"](None))
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(partial(write, tools), calls))
    assert (engine.refused == "") is slots, engine.refused
    refusals = [r.message for r in caplog.records if "no decoding engine" in r.message]
    assert len(refusals) == (0 if slots else 1)
    for one, other in zip(found, expected, strict=True):
        same(one, other)


def test_forward_passes_read_the_same_with_the_engine(
    case: Case, on: Callable[[bool], None]
) -> None:
    def read() -> list[Any]:
        module = case.tools.module
        lens = module.logit_lens(list(TEXTS), position=[-1, 0, 2, -1])
        return [
            *module.activations(
                list(TEXTS), [0, 1, 2, 3], position=[None, -1, None, 0], unit=[None] * 4
            ),
            np.array([[s.score for s in row.top] for one in lens for row in one]),
            np.array(
                [
                    [s.score for s in one.top]
                    for one in module.next_tokens(list(TEXTS), steering=[[]] * 4)
                ]
            ),
        ]

    on(False)
    expected = read()
    on(True)
    found = read()
    engine_of(case)
    assert case.tools.module.generate.__globals__["find"](None).readers.refused == ""
    for one, other in zip(found, expected, strict=True):
        assert np.allclose(np.asarray(one), np.asarray(other), rtol=1e-3, atol=1e-4)
    # Earlier readings stay as they are when more is read.
    again = read()
    for one, other in zip(found, again, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))


def test_seeds_and_steps_give_independent_numbers(llama: Case) -> None:
    import torch
    from scipy.stats import chisquare

    names = llama.tools.module.generate.__globals__
    choice = names["Choice"](list(range(200)), names["Settings"](20, temperature=1.0))
    for _ in range(20):
        choice(torch.zeros(200, 1, dtype=torch.long), torch.zeros(200, 16))
    drawn = torch.stack(choice.ids).numpy()
    for counts in (
        np.bincount(drawn.ravel()),
        np.bincount(drawn[0]),
        np.bincount(drawn[:, :10].ravel()),
    ):
        assert chisquare(counts).pvalue > 1e-4
    pairs = np.bincount((drawn[:-1] * 16 + drawn[1:]).ravel(), minlength=256)
    assert chisquare(pairs).pvalue > 1e-4
    # The first token of a small seed is not the seed, as it was when all hashes of 0 were 0.
    assert (drawn[0, :16] == np.arange(16)).sum() < 8


def test_filters_are_transformers_own(llama: Case) -> None:
    import torch
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    names = llama.tools.module.generate.__globals__
    sampling = names["Choice"].__init__.__globals__
    torch.manual_seed(0)
    scores = torch.randn(4, 50) * 3
    settings = [
        names["Settings"](1, temperature=1.0, top_k=5),
        names["Settings"](1, temperature=1.0, top_p=0.7),
        names["Settings"](1, temperature=1.0, top_k=12, top_p=0.5),
        names["Settings"](1, temperature=1.0),
    ]
    dice = sampling["Dice"](4, 50, scores.device)
    dice.set([0, 1, 2, 3], [0] * 4, settings)
    found = sampling["_filtered"](scores, dice)
    none: Any = torch.zeros(1, 1)
    for row, one in enumerate(settings):
        expected: Any = scores[row : row + 1]
        if one.top_k:
            expected = TopKLogitsWarper(one.top_k)(none, expected)
        if one.top_p < 1:
            expected = TopPLogitsWarper(one.top_p)(none, expected)
        assert torch.equal(found[row], expected[0])


def test_turns_are_fair_and_may_be_taken_again(llama: Case) -> None:
    turns = type(engine_model(llama).turn)()
    order: list[str] = []
    waiting = threading.Event()

    def other() -> None:
        waiting.set()
        with turns:
            order.append("other")

    thread = threading.Thread(target=other)
    with turns, turns:
        thread.start()
        assert waiting.wait(60)
        while not turns.wanted:
            pass
        order.append("first")
    with turns:
        order.append("again")
    thread.join(60)
    assert order == ["first", "other", "again"]


def engine_model(case: Case) -> Any:
    return case.tools.module.generate.__globals__["find"](None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("SEER_ENGINE", "fast"), ("SEER_CACHE_SHARE", "2"), ("SEER_CAPTURE", "many")],
)
def test_a_setting_that_means_nothing_is_refused(
    name: str, value: str, tmp_path: Path, llama: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seer import interfaces
    from seer.testing import load_interface

    monkeypatch.setenv("SEER_ENGINE", "batches")
    monkeypatch.setenv(name, value)
    with pytest.raises(Exception, match=f"{name}='{value}'") as caught:
        load_interface(interfaces.blackbox, models={"tiny": str(llama.folder)})
    assert not isinstance(caught.value, AssertionError)
    assert issubclass(ModelInputError, ValueError)
