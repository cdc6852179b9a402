"""What Engine.train() may call after each step: callback=[callbacks.wandb(run), callbacks.progress(100)].

For TensorBoard there is none: the run's own event files, RunReport.folder + "/tensorboard", have the same scalars.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from ._packages import package

Callback = Callable[[dict[str, Any]], None]


def wandb(run: Any) -> Callback:
    """Logs each step's metrics, by the names of metrics.jsonl, to `run`, which wandb.init() returned.

    A number that is not finite is left out. W&B refuses a step that it had: a run that goes on has steps of its own.
    """
    if not callable(getattr(run, "log", None)):
        raise TypeError(f"run: expected what wandb.init() returns, got {type(run).__name__}")

    def log(metrics: dict[str, Any]) -> None:
        run.log({name: value for name, value in metrics.items() if value is not None}, step=int(metrics["step"]))

    return log


def progress(steps: int | None = None) -> Callback:
    """A bar of tqdm, in notebooks too; where tqdm is not installed a line on standard error.

    `steps`: the run's last step, engine.settings["steps"] or what train() gets; the bar ends with it.
    """
    if importlib.util.find_spec("tqdm") is None:
        return _line_of(steps)
    bar: Any = None

    def show(metrics: dict[str, Any]) -> None:
        nonlocal bar
        step = int(metrics["step"])
        if bar is None:  # a run that goes on begins at a later step
            bar = package("tqdm.auto", "tqdm", "progress()").tqdm(total=steps, initial=step, unit="step")
        if metrics["learning/loss"] is not None:
            bar.set_postfix(loss=f"{metrics['learning/loss']:.4f}", refresh=False)
        bar.update(step + 1 - bar.n)
        if step + 1 == steps:
            bar.close()

    return show


def _line_of(steps: int | None) -> Callback:
    def show(metrics: dict[str, Any]) -> None:
        step = int(metrics["step"]) + 1
        of = "" if steps is None else f" of {steps}"
        sys.stderr.write(f"\rstep {step}{of}: loss {metrics['learning/loss']}" + ("\n" if step == steps else ""))
        sys.stderr.flush()

    return show
