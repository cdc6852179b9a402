"""Switchyard, an engine for Mixture-of-Experts transformers, from Python.

    with switchyard.Engine.open("FOLDER", ranks=4, ici_expert_parallelism=4) as engine:
        print(engine.generate("The ", max_tokens=20).text)

Python computes nothing: arrays go in and out without copies where their layout allows it, and all work is the engine's.
"""

import logging

# First: they refuse a processor, on which NumPy may end the process, and an installation that is not whole.
from . import _native as _native, _package as _package  # isort: skip
from . import callbacks, frames
from ._batch import Batch
from ._engine import Engine, Loss, Memory, RunReport, Score, Stream, Text, Token, TrainStep
from ._errors import Error, InternalError, RunError, UsageError
from ._parameters import Adapters, Gradients, Parameter, Parameters, Shard
from ._record import Record
from ._routing import Routing, RoutingRecord
from .chat import Message
from .commands import Report, convert, doctor, evaluate, explain, inspect, plan
from .server import Server
from .tokenizer import Tokenizer

__all__ = [
    "Adapters",
    "Batch",
    "Engine",
    "Error",
    "Gradients",
    "InternalError",
    "Loss",
    "Memory",
    "Message",
    "Parameter",
    "Parameters",
    "Record",
    "Report",
    "Routing",
    "RoutingRecord",
    "RunError",
    "RunReport",
    "Score",
    "Server",
    "Shard",
    "Stream",
    "Text",
    "Token",
    "Tokenizer",
    "TrainStep",
    "UsageError",
    "callbacks",
    "convert",
    "doctor",
    "evaluate",
    "explain",
    "frames",
    "inspect",
    "plan",
]

# The engine speaks to this logger while it works; nothing is printed unless the program sets up logging.
logging.getLogger("switchyard").addHandler(logging.NullHandler())
