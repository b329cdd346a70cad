"""`ScopedSandbox` as the original spells it."""

import os
from typing import Any

import seer.environment
from src.environment.sandbox import OldSandbox
from src.workspace import Library, Skill


class ScopedSandbox(OldSandbox, seer.environment.ScopedSandbox):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A `seer.environment.ScopedSandbox` with the original's spellings."""

    def serve(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        file_path: str | os.PathLike[str] | None = None,
        expose_as: str = "library",
        name: str | None = None,
        *,
        code_file: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Any:
        """As in `seer.environment`; the name of an MCP server may contain hyphens."""
        path = file_path if file_path is not None else code_file
        if path is None:
            raise TypeError("serve() needs the interface's file, as file_path or code_file")
        timeout = getattr(self.config, "rpc_timeout", None)
        if timeout is not None:
            options.setdefault("call_timeout", timeout)
        importable = name.replace("-", "_") if name is not None else None
        serve: Any = super().serve
        served = serve(path, expose_as, importable, **options)
        if expose_as == "mcp" and importable != name:
            return {name: served[importable]}
        if expose_as == "library":
            return Library.of(served)
        if expose_as == "skill":
            return Skill(name=served.name, description=served.description, files=served.files)
        return served
