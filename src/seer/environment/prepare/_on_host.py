"""Prepares parts of a sandbox on a remote host. It runs there from the code archive.

`main` gets one request from `RemotePreparer`, reports progress, and returns the result.
`LocalPreparer` does the work.
"""

import asyncio
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seer.environment.config._config import RepoConfig
from seer.environment.models._download import download
from seer.environment.models._names import hub_cache_name, model_slug
from seer.environment.models._view import ModelSource
from seer.environment.packages._packages import build_environment
from seer.environment.prepare._preparer import LocalPreparer

OnReport = Callable[[Mapping[str, object]], None]
_HUB = "huggingface-hub>=1"
_STORE = "SEER_MODEL_STORE"


def main(request: Mapping[str, Any], report: OnReport) -> dict[str, object]:
    """Carry out the request."""
    os.environ.update(request["env"])
    if request["uv"] is not None:
        os.environ["SEER_UV"] = request["uv"]
    wants_uv = request["op"] == "packages" and request["requirements"]
    if (wants_uv or request["op"] == "download") and not _has_uv():
        return {"needs": "uv", "machine": platform.machine()}
    work = _OPERATIONS[request["op"]]

    async def done() -> object:
        return await work(request, report)

    return {"result": asyncio.run(done())}


def _has_uv() -> bool:
    return (
        importlib.util.find_spec("uv") is not None
        or "SEER_UV" in os.environ
        or shutil.which("uv") is not None
    )


async def _packages(request: Mapping[str, Any], report: OnReport) -> str | None:
    if request["wheels"] is not None:
        os.environ["UV_FIND_LINKS"] = request["wheels"]
        os.environ["UV_NO_INDEX"] = "1"
    made = await LocalPreparer().packages(
        request["requirements"],
        python=request["python"],
        system=request["system"],
        on_progress=lambda text: report({"text": text}),
    )
    return str(made) if made is not None else None


async def _target(request: Mapping[str, Any], report: OnReport) -> dict[str, str]:
    """The platform that wheels must fit."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "machine": platform.machine(),
        "libc": platform.libc_ver()[1],
    }


async def _versions(request: Mapping[str, Any], report: OnReport) -> dict[str, str]:
    where = request["environment"]
    environment = Path(where) if where is not None else None
    return await LocalPreparer().versions(environment, request["wanted"])


async def _download(request: Mapping[str, Any], report: OnReport) -> list[str | None]:
    stored = _in_store(request["name"], request["revision"])
    if stored is not None:
        return stored
    packages: Path | None = None
    if importlib.util.find_spec("huggingface_hub") is None:
        packages = await build_environment([_HUB])
    folder, commit = await download(
        request["name"],
        request["revision"],
        token=request["token"],
        on_bytes=lambda done, total: report({"done": done, "total": total}),
        packages=packages,
    )
    return [str(folder), commit]


def _in_store(name: str, revision: str) -> list[str | None] | None:
    """Look up a model in this host's model store. Returns its folder, and its commit if known."""
    root = os.environ.get(_STORE, "")
    if not root:
        return None
    cached = Path(root, hub_cache_name(name))
    commit = revision
    if (cached / "refs" / revision).is_file():
        commit = (cached / "refs" / revision).read_text().strip()
    if _is_model(cached / "snapshots" / commit):
        return [str(cached / "snapshots" / commit), commit]
    for folder in (Path(root, name), Path(root, model_slug(name))):
        if _is_model(folder):
            return [str(folder.resolve()), None]
    return None


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))


async def _view(request: Mapping[str, Any], report: OnReport) -> dict[str, object]:
    source = ModelSource(Path(request["folder"]), name=request["name"], commit=request["commit"])
    view = await LocalPreparer().view(
        source,
        hidden_as=request["hidden_as"],
        secrets=frozenset(request["secrets"]),
        base_path=request["base_path"],
    )
    return {
        "folder": str(view.folder),
        "binds": [(name, str(path)) for name, path in view.binds],
        "names": list(view.names),
    }


async def _repo(request: Mapping[str, Any], report: OnReport) -> dict[str, object]:
    fields: dict[str, Any] = request["config"]
    if request["token"] is not None:
        os.environ[fields["token_secret"]] = request["token"]
    made = await LocalPreparer().repo(RepoConfig(**fields))
    return {**asdict(made), "host_path": str(made.host_path)}


_OPERATIONS: dict[str, Callable[[Mapping[str, Any], OnReport], Awaitable[object]]] = {
    "packages": _packages,
    "target": _target,
    "versions": _versions,
    "download": _download,
    "view": _view,
    "repo": _repo,
}
