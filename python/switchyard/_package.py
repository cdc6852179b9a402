"""Looks whether the installation is one package: that for CPUs and that with CUDA hold the same files."""

import importlib.metadata


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


if _is_installed("switchyard-cuda") and _is_installed("switchyard"):
    raise ImportError(
        "switchyard and switchyard-cuda are both installed and hold the same files: "
        "pip uninstall switchyard switchyard-cuda, then install one of them"
    )
