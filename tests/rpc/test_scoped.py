"""Interfaces that a scoped sandbox serves, as a user calls them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from seer.environment import SandboxConfig, ScopedSandbox
from seer.errors import (
    BudgetExceededError,
    CallLostError,
    ConfigError,
    DeadlineExceededError,
    HandleError,
    InterfaceRestartedError,
    SandboxStateError,
)
from seer.rpc import Budget

pytestmark = pytest.mark.full

PICTURES = """
import pandas as pd
from PIL import Image
from seer.rpc import Handle


@expose
def turn(image: Image.Image) -> Image.Image:
    return image.rotate(90, expand=True)


@expose
def double(frame: pd.DataFrame) -> pd.DataFrame:
    return frame * 2


@expose
def keep(text: str) -> Handle[str]:
    return Handle(text)


@expose
def read(text: str) -> str:
    return text
"""

COUNTER = """
import os

n = 0


@expose(max_calls=5)
def count() -> int:
    global n
    n += 1
    return n


@expose
def leave() -> None:
    os._exit(4)
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ScopedSandbox]:
    packages = ["numpy", "pandas", "pillow"]
    config = SandboxConfig(gpu=None, provider="local", python_packages=packages)
    with ScopedSandbox(config) as started:
        yield started


def serve(sandbox: ScopedSandbox, folder: Path, source: str, name: str, **options: Any) -> Any:
    file = folder / f"{name}.py"
    file.write_text(source)
    return sandbox.serve(file, "library", name, **options)


def test_several_interfaces_of_one_sandbox_have_state_and_ends_of_their_own(
    sandbox: ScopedSandbox, tmp_path: Path
) -> None:
    one: Any = serve(sandbox, tmp_path, COUNTER, "one").connect()
    two: Any = serve(sandbox, tmp_path, COUNTER, "two").connect()
    assert [one.count(), one.count(), two.count()] == [1, 2, 1]
    with pytest.raises(CallLostError, match="status 4"):
        one.leave()
    assert two.count() == 2


def test_images_and_frames_go_both_ways(sandbox: ScopedSandbox, tmp_path: Path) -> None:
    tools: Any = serve(sandbox, tmp_path, PICTURES, "pictures").connect()
    image = Image.new("RGB", (4, 2), (10, 20, 30))
    image.putpixel((0, 0), (1, 2, 3))
    turned = tools.turn(image)
    assert (turned.size, turned.mode) == ((2, 4), "RGB")
    assert turned.getpixel((0, 3)) == (1, 2, 3)
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, float("nan")]}, index=["x", "y"])
    pd.testing.assert_frame_equal(tools.double(frame), frame * 2)


def test_a_handle_is_its_callers_alone(sandbox: ScopedSandbox, tmp_path: Path) -> None:
    library = serve(sandbox, tmp_path, PICTURES, "handles")
    mine: Any = library.connect()
    other: Any = library.connect()
    handle = mine.keep("secret")
    assert mine.read(handle) == "secret"
    with pytest.raises(HandleError, match="does not exist"):
        other.read(handle)
    with pytest.raises(HandleError, match="does not exist"):
        other._gate.fetch(handle.reference(), None)
    other._gate.free(handle.reference())
    assert handle.fetch() == "secret"


def test_budgets_of_interface_and_function_hold_and_can_be_seen(
    sandbox: ScopedSandbox, tmp_path: Path
) -> None:
    library = serve(sandbox, tmp_path, COUNTER, "metered", budget=Budget(calls=7))
    first: Any = library.connect()
    second: Any = library.connect()
    assert [first.count() for _ in range(4)] == [1, 2, 3, 4]
    # The rest of a shared budget would show each caller what the others do.
    assert first.budget()["interface"] == {"limit": {"calls": 7}}
    assert first.budget()["caller"]["used"]["calls"] == 4
    assert second.count() == 5
    with pytest.raises(BudgetExceededError, match="count"):
        second.count()


def test_each_caller_and_each_function_has_its_own_budget(
    sandbox: ScopedSandbox, tmp_path: Path
) -> None:
    budgets = {"count": Budget(calls=4), "leave": Budget(seconds=60)}
    library = serve(
        sandbox,
        tmp_path,
        COUNTER,
        "shared_out",
        function_budgets=budgets,
        caller_budget=Budget(calls=3),
    )
    first: Any = library.connect()
    second: Any = library.connect()
    assert [first.count() for _ in range(3)] == [1, 2, 3]
    with pytest.raises(BudgetExceededError, match="this caller"):
        first.count()
    assert second.count() == 4
    with pytest.raises(BudgetExceededError, match="'count'"):
        second.count()
    assert second.budget()["functions"]["leave"]["limit"] == {"seconds": 60}

    used = sandbox.usage("shared_out")
    assert (used.interface["calls"], used.functions["count"]["calls"]) == (4, 4)
    one, two = used.callers
    assert [used.callers[name]["calls"] for name in (one, two)] == [3, 1]
    sandbox.set_budget("shared_out", Budget(calls=6), function="count")
    sandbox.set_budget("shared_out", Budget(), caller=one)
    sandbox.reload("shared_out")
    assert [first.count(), second.count()] == [1, 2]
    sandbox.set_budget("shared_out", Budget(calls=6))
    for tools in (first, second):
        with pytest.raises(BudgetExceededError, match="used up"):
            tools.count()


def test_budgets_of_what_does_not_exist_are_refused(sandbox: ScopedSandbox, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'cuont': is not exposed; exposed: count, leave"):
        serve(sandbox, tmp_path, COUNTER, "misspelt", function_budgets={"cuont": Budget(calls=1)})
    with pytest.raises(ConfigError, match="must be a Budget"):
        serve(sandbox, tmp_path, COUNTER, "misspelt", caller_budget={"calls": 1})
    serve(sandbox, tmp_path, COUNTER, "misspelt")
    with pytest.raises(ConfigError, match="there is no function 'cuont'"):
        sandbox.set_budget("misspelt", Budget(calls=1), function="cuont")
    with pytest.raises(ConfigError, match="there is no caller 'nobody'"):
        sandbox.set_budget("misspelt", Budget(calls=1), caller="nobody")
    with pytest.raises(ConfigError, match="combined with function"):
        sandbox.set_budget("misspelt", Budget(calls=1), caller="x", function="count")
    with pytest.raises(SandboxStateError, match="no interface 'other'"):
        sandbox.usage("other")


def test_an_interface_that_died_is_started_again_and_callers_hear_of_it(
    sandbox: ScopedSandbox, tmp_path: Path
) -> None:
    library = serve(sandbox, tmp_path, COUNTER, "again", restart="on-failure")
    cause: Any = library.connect()
    other: Any = library.connect()
    assert [cause.count(), other.count()] == [1, 2]
    with pytest.raises(CallLostError):
        cause.leave()
    with pytest.raises(InterfaceRestartedError):
        other.count()
    assert [cause.count(), other.count()] == [1, 2]


def test_the_owner_says_how_long_calls_may_run(sandbox: ScopedSandbox, tmp_path: Path) -> None:
    for wrong in (0, -1, float("nan"), "long"):
        with pytest.raises(ConfigError, match=r"serve\(call_timeout=\)"):
            serve(sandbox, tmp_path, COUNTER, "misspelt_time", call_timeout=wrong)
    source = (
        COUNTER
        + """
@expose
def hang() -> None:
    import time
    while True:
        try:
            time.sleep(1)
        except BaseException:
            pass
"""
    )
    library = serve(sandbox, tmp_path, source, "hangs", call_timeout=0.5)
    tools: Any = library.connect()
    with pytest.raises(DeadlineExceededError, match="its timeout of 0.5 s"):
        tools.hang()
    other: Any = library.connect()
    with pytest.raises(ConnectionError):
        other.count()
