"""Packages of others that the package works with and does not install."""

from __future__ import annotations

import importlib
from typing import Any


def package(module: str, name: str, what: str) -> Any:
    """Imports `module` of the package `name` for `what`; without it an ImportError of one line names the package."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ImportError(f"{what} needs the package {name}: pip install {name}", name=error.name) from None
