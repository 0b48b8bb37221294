"""What everything stands on: settings, rows, kernels, the certificate; files, locks, signals."""

import sys
import threading
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_loading = threading.RLock()


class _Later(ModuleType):
    """A module that is executed when a name in it is first needed. ``LazyLoader`` of the standard
    library is this without a lock, and threads would meet half a module (CPython, issue 114763)."""

    def __getattr__(self, name: str) -> Any:
        # import * asks for __all__, and inspect for other names of this kind of every module
        if (name.startswith("__") and name != "__all__") or name not in dir(self):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        with _loading:
            if type(self) is _Later and self.__spec__ and self.__spec__.loader:
                self.__spec__.loader.exec_module(self)
                object.__setattr__(self, "__class__", ModuleType)
        return list(ModuleType.__dir__(self))


def later(name: str) -> None:
    """Make a module one that is executed when a name in it is first needed."""
    spec = find_spec(name)
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)
    module.__class__ = _Later
    package, _, child = name.rpartition(".")
    setattr(sys.modules[package], child, module)


later("streamtron.core.events")  # which streamtron has as streamtron.events, and numpy is heavy
later("streamtron.core.kernels")  # which loads numba
