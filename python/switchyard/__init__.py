"""Switchyard, an engine for Mixture-of-Experts transformers, from Python.

    with switchyard.Engine.open("FOLDER", ranks=4, ici_expert_parallelism=4) as engine:
        print(engine.generate("The ", max_tokens=20).text)

Python computes nothing: arrays go in and out without copies where their layout allows it, and all work is the engine's.
"""

# First: they refuse a processor, on which NumPy may end the process, and an installation that is not whole.
from . import _native as _native, _package as _package  # isort: skip
from ._batch import Batch
from ._engine import Engine, Loss, Score, Stream, Text, Token, TrainStep
from ._errors import Error, InternalError, RunError, UsageError
from ._parameters import Gradients, Parameter, Parameters, Shard

__all__ = [
    "Batch",
    "Engine",
    "Error",
    "Gradients",
    "InternalError",
    "Loss",
    "Parameter",
    "Parameters",
    "RunError",
    "Score",
    "Shard",
    "Stream",
    "Text",
    "Token",
    "TrainStep",
    "UsageError",
]
