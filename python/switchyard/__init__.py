"""Switchyard, an engine for Mixture-of-Experts transformers, from Python.

    with switchyard.Engine.open("FOLDER", ranks=4, ici_expert_parallelism=4) as engine:
        print(engine.generate("The ", max_tokens=20).text)

Python computes nothing: arrays go in and out without copies where their layout allows it, and all work is the engine's.
"""

from ._engine import Engine, Stream, Text, Token, TrainStep
from ._errors import Error, InternalError, RunError, UsageError
from ._parameters import Parameter, Parameters, Shard
from .commands import Record, Report, convert, doctor, evaluate, explain, inspect, plan
from .server import Server
from .tokenizer import Tokenizer

__all__ = [
    "Engine",
    "Error",
    "InternalError",
    "Parameter",
    "Parameters",
    "Record",
    "Report",
    "RunError",
    "Server",
    "Shard",
    "Stream",
    "Text",
    "Token",
    "Tokenizer",
    "TrainStep",
    "UsageError",
    "convert",
    "doctor",
    "evaluate",
    "explain",
    "inspect",
    "plan",
]
