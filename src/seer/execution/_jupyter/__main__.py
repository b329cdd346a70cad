"""Run the server: settings come as the first line of standard input, requests as the others.

Answers and events go to standard output, one JSON object a line. When standard input ends, the
controller is gone, and so is the server. What it may do is narrow on purpose: output of a kernel
is shown in a person's browser with the person's rights, so those rights end at the notebook's own
folder and at the jailed kernel. There are no terminals, no conversions, no extension manager.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from seer.execution._jupyter.document import edit_document, open_document, read_document
from seer.execution._jupyter.provisioner import Settings
from seer.execution._notebook_edits import Edit

_SERVICES = ("nbconvert", "shutdown")
"""What the server does not offer: one runs converters on this host, the other ends the server."""


_SAVE_DELAY = 0.1
"""Seconds from an edit to the file."""


class NarrowServer(ServerApp):
    """A Jupyter server without the services that reach beyond the notebook."""

    default_services = tuple(s for s in ServerApp.default_services if s not in _SERVICES)


def main() -> None:
    """Serve until the controller is gone."""
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to the log
    Settings.key = settings["key"]
    Settings.tell = lambda event: _say(answers, {"event": event})
    _register_provisioner()
    _write_kernelspec(Path.cwd())
    _write_preferences(Path.cwd())
    app = NarrowServer.instance(config=_config(settings))
    app.initialize(argv=[])
    loop: Any = app.io_loop
    loop.add_callback(_serve_requests, app, answers, settings["notebook"])
    app.start()


async def _serve_requests(app: ServerApp, answers: Any, notebook: str) -> None:
    try:
        await _answer_requests(app, answers, notebook)
    except OSError as error:
        app.log.warning("the controller is gone: %s", error)
    except Exception:
        app.log.exception("the server cannot go on")
    finally:
        # What was just edited is saved a moment later; then nothing here is worth an orderly
        # end, which would wait for a kernel that is not ours.
        await asyncio.sleep(2 * _SAVE_DELAY)
        os._exit(0)


async def _answer_requests(app: ServerApp, answers: Any, notebook: str) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 30)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await open_document(app, notebook)
    _say(answers, {"ready": app.port})
    while line := await reader.readline():
        request: dict[str, Any] = json.loads(line)
        answer: dict[str, Any] = {"answer": request["id"]}
        try:
            if "edit" in request:
                await edit_document(app, notebook, Edit.from_json(request["edit"]))
            else:
                answer["notebook"] = await read_document(app, notebook)
        except LookupError as error:
            answer["missing"] = str(error)
        except Exception as error:
            # The edge of the process: the controller gets an answer whatever went wrong.
            app.log.exception("a request of the controller failed")
            answer["error"] = f"{type(error).__name__}: {error}"
        _say(answers, answer)


def _say(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _config(settings: dict[str, Any]) -> Config:
    config = Config()
    server = config.ServerApp
    server.ip = "127.0.0.1"
    server.port = 0
    server.open_browser = False
    server.allow_root = True
    server.quit_button = False
    server.terminals_enabled = False
    server.root_dir = settings["root"]
    server.contents_manager_class = "seer.execution._jupyter.contents.WholeFileManager"
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
    config.LabApp.extension_manager = "readonly"
    config.LabApp.news_url = None
    config.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
    config.KernelSpecManager.ensure_native_kernel = False
    config.KernelSpecManager.allowed_kernelspecs = {"seer"}
    config.MultiKernelManager.default_kernel_name = "seer"
    config.AsyncMappingKernelManager.default_kernel_name = "seer"
    config.AsyncMappingKernelManager.kernel_manager_class = (
        "seer.execution._jupyter.provisioner.RelayKernelManager"
    )
    config.YDocExtension.document_cleanup_delay = None
    config.YDocExtension.document_save_delay = _SAVE_DELAY
    config.YDocExtension.session_store_path = str(Path.cwd() / "collaboration.json")
    config.BaseFileIdManager.db_path = str(Path.cwd() / "file_id.db")
    # Scripts in a kernel's output may not send anything anywhere but to this server.
    server.tornado_settings = {
        "headers": {
            "Content-Security-Policy": (
                "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' "
                "blob:; style-src 'self' 'unsafe-inline'; connect-src 'self' data: blob:; "
                "frame-ancestors 'self'; form-action 'self'"
            )
        }
    }
    return config


def _register_provisioner() -> None:
    factory = KernelProvisionerFactory.instance()
    factory.provisioners["seer"] = EntryPoint(
        "seer",
        "seer.execution._jupyter.provisioner:RelayProvisioner",
        KernelProvisionerFactory.GROUP_NAME,
    )


def _write_kernelspec(folder: Path) -> None:
    """The one kernel that there is; the environment points Jupyter's data folder here."""
    spec = folder / "data" / "kernels" / "seer"
    spec.mkdir(parents=True)
    content = {
        "argv": ["seer"],
        "display_name": "Python 3 (Seer)",
        "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": "seer"}},
    }
    (spec / "kernel.json").write_text(json.dumps(content))


def _write_preferences(folder: Path) -> None:
    """What a person would otherwise be asked first: whether to fetch news from a website."""
    asked = folder / "settings" / "@jupyterlab" / "apputils-extension"
    asked.mkdir(parents=True)
    wanted = {"fetchNews": "false", "checkForUpdates": False}
    (asked / "notification.jupyterlab-settings").write_text(json.dumps(wanted))


if __name__ == "__main__":
    main()
