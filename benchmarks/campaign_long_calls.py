"""Calls that take an hour: `python benchmarks/campaign_long_calls.py`.

Three jailed sessions call one served interface at the same time: a function on a thread of its
own, one that keeps the main thread in a single sleep, and a generator that is silent between its
two items. Each call must return the function's result. Meanwhile, the interface must answer health
checks at once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from benchmarks._common import RESULTS, header, machine, table  # noqa: E402
from seer.environment import SandboxConfig, ScopedSandbox  # noqa: E402
from seer.execution import create_local_session  # noqa: E402
from seer.workspace import Workspace  # noqa: E402

_INTERFACE = '''"""Functions that take their time."""

import time
from collections.abc import Iterator


@expose(max_concurrency=2)
def on_a_thread(seconds: float) -> str:
    """Wait on a thread of its own."""
    time.sleep(seconds)
    return "slept"


@expose
def on_the_main_thread(seconds: float) -> str:
    """Keep the main thread."""
    time.sleep(seconds)
    return "slept"


@expose(max_concurrency=2)
def silent(seconds: float) -> Iterator[str]:
    """Say nothing for a long time."""
    yield "before"
    time.sleep(seconds)
    yield "after"


@expose(max_concurrency=2)
def answer() -> int:
    """Be there."""
    return 42
'''
_CALLS = {
    "a function on a thread of its own": ("tools.on_a_thread({})", "slept"),
    "a function that keeps the main thread": ("tools.on_the_main_thread({})", "slept"),
    "a stream that is silent": ("list(tools.silent({}))", "['before', 'after']"),
}


def main() -> int:
    """Make the calls, and write how each ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    seconds: float = parser.parse_args().seconds
    where = machine()
    outcomes: dict[str, tuple[str, float]] = {}
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tools.py"
        file.write_text(_INTERFACE)
        config = SandboxConfig(gpu=None, provider="local", timeout=int(seconds) + 3600)
        with ScopedSandbox(config).start() as scoped:
            workspace = Workspace(libraries=[scoped.serve(file, call_timeout=None)])

            def call(name: str) -> None:
                code, _ = _CALLS[name]
                program = f"import tools\nprint({code.format(seconds)}, end='')"
                place = Path(folder) / str(list(_CALLS).index(name))
                with create_local_session(workspace, place) as session:
                    begin = time.monotonic()
                    result = session.exec(program, timeout=seconds + 600)
                    outcomes[name] = (result.text, time.monotonic() - begin)

            threads = [threading.Thread(target=call, args=(name,)) for name in _CALLS]
            with create_local_session(workspace, Path(folder) / "other") as other:
                for thread in threads:
                    thread.start()
                while any(thread.is_alive() for thread in threads):
                    begin = time.monotonic()
                    assert other.exec("import tools\nprint(tools.answer())").text == "42\n"
                    slowest = max(slowest, time.monotonic() - begin)
                    for thread in threads:
                        thread.join(timeout=10)
    rows = [
        [name, f"{took:,.0f}", "as it should" if text == expected else repr(text)]
        for name, (_, expected) in _CALLS.items()
        for text, took in [outcomes.get(name, ("no answer", 0.0))]
    ]
    page = header("Calls that take an hour", {}, where)
    page += f"\nThree calls of {seconds:,.0f} s at the same time, each from a jailed session.\n\n"
    page += table(["call", "came back after, s", "with its result"], rows)
    page += f"\n\nAnother session called the interface all the while; {slowest:.2f} s"
    page += " was the longest that it waited.\n"
    print(page)
    (RESULTS / "gate-long-calls.md").write_text(page)
    return 0 if all(row[2] == "as it should" for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
