"""The metrics of training runs as frames of pandas, and a plot of experts' loads. docs/run-files.md has the names.

`path` is a run's folder or a file metrics.jsonl, of this package or of `switchyard train`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._arguments import path_of
from ._errors import UsageError
from ._packages import package

if TYPE_CHECKING:
    import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]

_ROWS = re.compile(r"moe/layer_(\d+)/rows/expert_(\d+)")
_MOST_PANELS = 16  # as in plots/expert_load.svg


def metrics(path: str | os.PathLike[str]) -> pandas.DataFrame:
    """A row for each step, a column for each metric; NaN where a step has none or it was not finite."""
    pandas = package("pandas", "pandas", "frames of metrics")
    file = path_of("path", path)
    if os.path.isdir(file):
        file = os.path.join(file, "metrics.jsonl")
    if not os.path.isfile(file):
        raise UsageError(f"{file}: expected a run's folder or its metrics.jsonl")
    with open(file, encoding="utf-8") as lines:
        frame = pandas.DataFrame([json.loads(line) for line in lines])
    if "step" not in frame:
        raise UsageError(f"{file}: expected lines of metrics with a step, found none")
    return frame.set_index("step").astype("float64")


def routing_loads(path: str | os.PathLike[str]) -> pandas.DataFrame:
    """Rows of tokens that chose each expert, before dropping: a row for each step, columns (layer, expert)."""
    pandas = package("pandas", "pandas", "frames of routing loads")
    frame = metrics(path)
    found = sorted((int(m[1]), int(m[2]), name) for name in frame if (m := _ROWS.fullmatch(name)))
    if not found:
        raise UsageError(f"{path_of('path', path)}: expected loads of experts, found none: a dense model's run")
    loads = frame[[name for _, _, name in found]]
    loads.columns = pandas.MultiIndex.from_tuples([of[:2] for of in found], names=["layer", "expert"])
    return loads


def plot_load(path: str | os.PathLike[str], layers: Sequence[int] | None = None) -> list[Any]:
    """Plots each expert's load over its layer's mean (1 is balanced) over the steps, a panel a layer: the axes.

    `layers`: by default the first 16 with experts. `axes[0].figure.savefig("load.png")` writes it.
    """
    pyplot = package("matplotlib.pyplot", "matplotlib", "plot_load()")
    loads = routing_loads(path)
    known = list(loads.columns.unique("layer"))
    wanted = known[:_MOST_PANELS] if layers is None else list(layers)
    if not wanted or any(layer not in known for layer in wanted):
        raise UsageError(f"layers={wanted}: expected some of {known}")
    figure, axes = pyplot.subplots(
        len(wanted), 1, squeeze=False, sharex=True, layout="constrained", figsize=(7, 1 + 1.5 * len(wanted))
    )
    extent = (loads.index[0] - 0.5, loads.index[-1] + 0.5)
    for axis, layer in zip(axes[:, 0], wanted):
        of_layer = loads[layer]
        over_mean = of_layer.div(of_layer.mean(axis=1), axis=0).to_numpy().T
        image = axis.imshow(
            over_mean,
            aspect="auto",
            interpolation="nearest",
            cmap="RdBu_r",
            vmin=0,
            vmax=2,
            extent=(*extent, len(over_mean) - 0.5, -0.5),
        )
        axis.set_ylabel(f"layer {layer}\nexpert")
    axes[-1, 0].set_xlabel("step")
    figure.colorbar(image, ax=axes, label="load over the mean", extend="max")
    return list(axes[:, 0])
