"""Another name for `src`: `interp_infra.environment` is `src.environment`, and so on."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Alias(MetaPathFinder, Loader):
    """Imports each module of this package from `src`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module("src" + spec.name.removeprefix(__name__))

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, because the import of the `src` module has executed it."""


sys.meta_path.insert(0, _Alias())
