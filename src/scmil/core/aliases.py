"""Short names of public modules: `import scmil.aggregators` imports `scmil.models.aggregators`.

Both names give the same module object. The table is `scmil._PUBLIC_MODULES`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Aliases(MetaPathFinder):
    """Finds `scmil.NAME` and its submodules under another name of the package."""

    def __init__(self, package: str, targets: Mapping[str, str]) -> None:
        self._targets = {
            f"{package}.{name}": f"{package}.{target}"
            for name, target in targets.items()
            if name != target
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a module with a short name; None for every other module."""
        parts = fullname.split(".")
        module = self._targets.get(".".join(parts[:2]))
        return ModuleSpec(fullname, _Alias(".".join([module, *parts[2:]]))) if module else None


class _Alias(Loader):
    """Loads a module by importing it under its own name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module and keep its own specification."""
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the specification, which `importlib` replaced; the module is executed already."""
        module.__spec__ = self._spec


def install(package: str, targets: Mapping[str, str]) -> None:
    """Make the short names importable, once per package."""
    if not any(isinstance(finder, Aliases) for finder in sys.meta_path):
        # Before the standard finder, which would load a submodule a second time.
        sys.meta_path.insert(0, Aliases(package, targets))
