"""Runs the server. The first line of standard input has the settings; the others are requests.

When standard input ends, the controller is gone, and the server ends too. The server can do little
on purpose: a person's browser shows the kernel's output with the person's rights, so these rights
cover only the session's notebook and the jailed kernel. There are no other files and kernels, no
terminals, no conversions, no extension manager, and no script in an output runs.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import resource
import sys
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_dir
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from seer.execution.notebook._edits import Edit
from seer.execution.notebook.jupyter.contents import SessionContents
from seer.execution.notebook.jupyter.controller import ControllerPipe, Message
from seer.execution.notebook.jupyter.document import (
    edit_document,
    open_document,
    read_document,
    save_document,
)
from seer.execution.notebook.jupyter.provisioner import (
    KERNEL,
    RelayFactory,
    RelayKernelManager,
    RelayProvisioner,
    SessionKernels,
    SessionSpecs,
)

_SERVICES = ("files", "nbconvert", "shutdown", "view")
"""What the server does not offer: other files, converters, and its own shutdown."""
_DISABLED = (
    # These turn a kernel's output into running code.
    "@jupyterlab/javascript-extension",
    "@jupyterlab/vega5-extension",
)
_MEMORY = 3 << 30
"""The limit of its address space in bytes, because it keeps what a kernel sends in memory."""
_SAVE_DELAY = 0.5
"""Seconds from a person's edit to the file; the agent's are saved at once."""
_PROGRAMS = frozenset(
    ("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn")
    + ("subprocess.Popen",)
)


class NarrowServer(ServerApp):
    """A Jupyter server without the services that reach beyond the notebook."""

    default_services = tuple(s for s in ServerApp.default_services if s not in _SERVICES)


def main() -> None:
    """Serve until the controller is gone."""
    if sys.platform == "linux":  # if the address space can be limited
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    controller = ControllerPipe()
    RelayProvisioner.controller = SessionContents.controller = controller
    SessionContents.notebook = controller.settings["notebook"]
    RelayFactory.instance()  # Jupyter uses this one from now on
    _write_preferences(Path.cwd())
    app = NarrowServer.instance(config=_config(controller.settings, Path.cwd()))
    app.initialize(argv=[])
    sys.addaudithook(_refuse_programs)
    loop: Any = app.io_loop
    loop.add_callback(_serve, app, controller)
    app.start()


def _refuse_programs(event: str, _: tuple[Any, ...]) -> None:
    """Refuse to start a program: no request may start a kernel or a build of JupyterLab."""
    if event in _PROGRAMS:
        raise PermissionError(f"a notebook's server starts no programs ({event})")


async def _serve(app: ServerApp, controller: ControllerPipe) -> None:
    listening = asyncio.create_task(controller.listen())
    serving = asyncio.create_task(_answer(app, controller))
    try:
        await asyncio.wait((listening, serving), return_when=asyncio.FIRST_COMPLETED)
        for task in (listening, serving):
            if task.done():
                task.result()
    except OSError as error:
        app.log.warning("the controller is gone: %s", error)
    except Exception:
        app.log.exception("the server cannot continue")
    finally:
        # An orderly end would wait for a kernel that belongs to the controller.
        os._exit(0)


async def _answer(app: ServerApp, controller: ControllerPipe) -> None:
    notebook: str = controller.settings["notebook"]

    async def handle(request: Message) -> Message:
        try:
            if "edit" in request:
                await edit_document(app, notebook, Edit(**request["edit"]))
                await save_document(app, notebook)
                return {}
            return {"notebook": await read_document(app, notebook)}
        except LookupError as error:
            return {"missing": str(error)}
        except Exception as error:
            # The controller gets an answer for every failure.
            app.log.exception("a request of the controller failed")
            return {"error": f"{type(error).__name__}: {error}"}

    await open_document(app, notebook)
    controller.say({"ready": True})
    await controller.serve(handle)


def _config(settings: Message, folder: Path) -> Config:
    config = Config()
    server = config.ServerApp
    server.sock = "http"  # in the working folder: an address is at most 107 bytes long
    server.log_level = "WARN"
    server.open_browser = False
    server.allow_root = True
    server.quit_button = False
    server.terminals_enabled = False
    server.root_dir = str(folder / "root")
    server.contents_manager_class = SessionContents
    server.kernel_spec_manager_class = SessionSpecs
    server.default_url = f"/lab/tree/{settings['notebook']}"
    server.jpserver_extensions = {
        name: name in ("jupyterlab", "jupyter_server_fileid", "jupyter_server_ydoc")
        for name in (
            "jupyterlab",
            "jupyter_lsp",
            "jupyter_server_fileid",
            "jupyter_server_terminals",
            "jupyter_server_ydoc",
            "notebook_shim",
        )
    }
    config.IdentityProvider.token = settings["token"]
    config.IdentityProvider.cookie_options = {"samesite": "Strict"}
    config.LabApp.extension_manager = "readonly"
    config.LabApp.news_url = None
    config.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
    config.LabApp.app_dir = settings["lab"]
    config.LabApp.labextensions_path = [str(folder / "labextensions")]
    server.kernel_manager_class = SessionKernels
    config.SessionKernels.default_kernel_name = KERNEL
    config.SessionKernels.kernel_manager_class = (
        f"{RelayKernelManager.__module__}.{RelayKernelManager.__name__}"
    )
    config.YDocExtension.document_cleanup_delay = None
    config.YDocExtension.document_save_delay = _SAVE_DELAY
    config.YDocExtension.session_store_path = str(folder / "collaboration.json")
    config.BaseFileIdManager.db_path = str(folder / "file_id.db")
    server.tornado_settings = {"headers": _headers(Path(settings["lab"]))}
    return config


def _headers(lab: Path) -> dict[str, str]:
    """What the browser may do with the page.

    Only JupyterLab's own scripts run; those inline in the page are allowed by their hash. Nothing
    is fetched from or sent to another address. JupyterLab checks its settings with generated code,
    which needs `unsafe-eval`.
    """
    page = (lab / "static" / "index.html").read_text()
    inline = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = (hashlib.sha256(script.encode()).digest() for script in inline)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    policy = (
        "default-src 'self' data: blob:",
        f"script-src 'self' 'unsafe-eval' {hashes}",
        "worker-src 'self' blob:",
        "style-src 'self' 'unsafe-inline'",
        "connect-src 'self' data: blob:",
        "object-src 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "form-action 'self'",
    )
    return {
        "Content-Security-Policy": "; ".join(policy),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-DNS-Prefetch-Control": "off",
    }


def _write_preferences(folder: Path) -> None:
    """Decline JupyterLab's news and updates, and disable extensions that run a kernel's output."""
    asked = folder / "settings" / "@jupyterlab" / "apputils-extension"
    asked.mkdir(parents=True)
    wanted = {"fetchNews": "false", "checkForUpdates": False}
    (asked / "notification.jupyterlab-settings").write_text(json.dumps(wanted))
    page = Path(jupyter_config_dir()) / "labconfig"
    page.mkdir(parents=True)
    disabled = {"disabledExtensions": dict.fromkeys(_DISABLED, True)}
    (page / "page_config.json").write_text(json.dumps(disabled))


if __name__ == "__main__":
    main()
