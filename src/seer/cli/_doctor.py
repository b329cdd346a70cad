"""`seer doctor`: what works on this machine, and what to do about the rest."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from seer.cli._codes import FOUND
from seer.cli._options import json_option
from seer.console import say, say_json, table

State = Literal["ok", "missing", "broken"]
_COLOURS = {"ok": "green", "missing": "yellow", "broken": "red"}
_LOW_DISK = 5 << 30
_ADAPTERS = Path(__file__).parents[1] / "organisms" / "adapters"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    state: State
    detail: str
    fix: str = ""
    needed: bool = False
    """Whether Seer needs it for its main work on this machine."""


@click.command(name="doctor", epilog="Exit code 3: something that Seer needs here is missing.")
@json_option
def command(as_json: bool) -> int:
    """Check jails, GPU, torch, agents' SDKs and keys, providers, extras, hub and disk.

    For each key, it checks only whether the key is set. It shows no values and
    sends nothing.
    """
    findings = list(examine())
    if as_json:
        say_json([asdict(finding) for finding in findings])
    else:
        rows = [(finding.what, finding.state, finding.detail) for finding in findings]
        table(["what", "state", "detail"], rows, colours=_COLOURS)
        # Below the table, because a table wraps long commands.
        if any(finding.fix for finding in findings):
            say("what to do if you need one of these:")
        for finding in findings:
            if finding.fix:
                say(f"{finding.what}: {finding.fix}")
    return FOUND if any(f.needed and f.state != "ok" for f in findings) else 0


def examine() -> Iterator[Finding]:
    """Run every check."""
    yield _python()
    yield from _name_conflict()
    yield from _jails()
    yield _gpu()
    yield _models()
    yield _uv()
    yield _git()
    yield from _agents()
    yield from _providers()
    yield from _extras()
    yield _hub()
    yield from _disk()


def _python() -> Finding:
    version = sys.version.split()[0]
    return Finding("python", "ok", f"{version} at {sys.executable}", needed=True)


def _name_conflict() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, distribution

    from seer._name_conflict import OTHER, REMEDY

    try:
        found = distribution(OTHER)
    except PackageNotFoundError:
        return
    detail = f"{OTHER} {found.version}, another project, installs a module {OTHER!r} too"
    yield Finding("package", "broken", detail, REMEDY, needed=True)


def _jails() -> Iterator[Finding]:
    from seer.isolation import backends

    if sys.platform != "linux":
        yield Finding(
            "jail",
            "missing",
            f"there is no jail backend for {sys.platform}",
            'use a remote provider, or set isolation="none"',
        )
        return
    found = {name: reason for name, reason in backends().items() if name != "none"}
    works = [name for name, reason in found.items() if reason is None]
    for name, reason in found.items():
        if reason is None:
            yield Finding(f"jail: {name}", "ok", "a jail was started")
        else:
            # One working backend is enough.
            yield Finding(f"jail: {name}", "missing", reason, needed=not works)


def _gpu() -> Finding:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding(
            "gpu",
            "missing",
            "no nvidia-smi",
            "without one, models run on the CPU or on a remote machine",
        )
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return Finding("gpu", "broken", "nvidia-smi does not answer", "check the driver's log")
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or ["nvidia-smi failed"]
        return Finding("gpu", "broken", words[0], "reinstall the driver")
    return Finding("gpu", "ok", "; ".join(done.stdout.strip().splitlines()))


def _models() -> Finding:
    from seer.cli._demo_environment import has_model_packages, interpreter

    if has_model_packages():
        return Finding("models", "ok", "torch and transformers are installed")
    if interpreter() is not None:
        return Finding("models", "ok", "torch is in the environment of `seer demo`")
    fix = 'run `seer demo` once, or pip install "seer-interp[interp]"'
    return Finding("models", "missing", "torch and transformers are not installed", fix)


def _uv() -> Finding:
    from uv import find_uv_bin

    try:
        return Finding("packages", "ok", f"uv at {find_uv_bin()}", needed=True)
    except FileNotFoundError as error:
        fix = "pip install --force-reinstall uv"
        return Finding("packages", "broken", str(error), fix, needed=True)


def _git() -> Finding:
    program = shutil.which("git")
    if program is None:
        return Finding("git", "missing", "repos=[...] cannot be cloned", "install git")
    return Finding("git", "ok", program)


_AGENTS = {
    "claude": ("claude_agent_sdk", ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")),
    "openai": ("openai", ("OPENAI_API_KEY",)),
    "gemini": ("google.genai", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
}


def _agents() -> Iterator[Finding]:
    yield Finding("agent: scripted", "ok", "needs no key")
    for name, (module, keys) in _AGENTS.items():
        if not _installed(module):
            fix = f'pip install "seer-interp[{name}]"'
            yield Finding(f"agent: {name}", "missing", "its SDK is not installed", fix)
        elif not any(os.environ.get(key) for key in keys):
            fix = f"set {' or '.join(keys)}"
            yield Finding(f"agent: {name}", "missing", "no key in the environment", fix)
        else:
            named = next(key for key in keys if os.environ.get(key))
            yield Finding(f"agent: {name}", "ok", f"{named} is set")


def _providers() -> Iterator[Finding]:
    from seer.providers import provider_names, why_unavailable

    for name in provider_names():
        reason = why_unavailable(name)
        if reason is None:
            yield Finding(f"provider: {name}", "ok", "set up")
        elif name != "replay":
            detail, _, fix = reason.partition("; ")
            yield Finding(f"provider: {name}", "missing", detail, fix)


_EXTRAS = {
    "viewer": "`seer view`",
    "sweeps": "tables and plots of sweeps",
    "science": "intervals and statistical tests",
    "notebook": "agents that work in a notebook",
    "chat": "a chat with an agent in the terminal",
    "inspect": "Inspect's tools and logs",
    "organisms": "models with a planted property",
}
"""The purpose of each extra. The extras of agents, providers and models have their own rows."""


def _extras() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        needs = [Requirement(line) for line in requires("seer-interp") or ()]
    except PackageNotFoundError:  # a copy of the source that was not installed
        return
    for extra, purpose in _EXTRAS.items():
        missing = [
            need.name
            for need in needs
            if need.marker is not None
            and need.marker.evaluate({"extra": extra})
            and not need.marker.evaluate({"extra": ""})
            and not _has(need.name)
        ]
        if missing:
            detail = f"{purpose}; not installed: {', '.join(missing)}"
            fix = f'pip install "seer-interp[{extra}]"'
            yield Finding(f"extra: {extra}", "missing", detail, fix)
        else:
            yield Finding(f"extra: {extra}", "ok", purpose)


def _has(distribution: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    if distribution == "seer-interp-organisms" and _ADAPTERS.is_dir():  # in a clone
        return True
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def _hub() -> Finding:
    token = next((k for k in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(k)), None)
    stored = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface", "token")
    offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    where = os.environ.get("HF_ENDPOINT", "the public hub")
    said = f"{where}; " + ("offline: cached and local models only" if offline else "not contacted")
    if token or stored.is_file():
        return Finding("hub", "ok", f"{said}; a token was found")
    return Finding("hub", "ok", f"{said}; no token", "set HF_TOKEN for gated models")


def _disk() -> Iterator[Finding]:
    for what, variable, default in (
        ("disk: cache", "XDG_CACHE_HOME", ".cache"),
        ("disk: machines", "XDG_STATE_HOME", ".local/state"),
    ):
        # Like Seer itself, ignore a relative or empty path.
        root = os.environ.get(variable, "")
        folder = Path(root) if root.startswith("/") else Path.home() / default
        there = next(path for path in (folder, *folder.parents) if path.is_dir())
        free = shutil.disk_usage(there).free
        detail = f"{free / 2**30:.0f} GiB free in {there}"
        if not os.access(there, os.W_OK):
            fix = "change its owner, or set XDG_CACHE_HOME and XDG_STATE_HOME"
            yield Finding(what, "broken", f"{there} cannot be written", fix, needed=True)
        elif free < _LOW_DISK:
            yield Finding(what, "broken", detail, "free some space for models and environments")
        else:
            yield Finding(what, "ok", detail)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
