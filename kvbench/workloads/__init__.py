"""Request traces: loaders for public formats, generators calibrated on published statistics, token ids."""

from kvbench.workloads.catalogue import TRACES, NamedTrace, get_trace, list_traces
from kvbench.workloads.load import load_trace
from kvbench.workloads.reuse import Reuse, coarsened, ideal_reuse
from kvbench.workloads.trace import Request, Trace

__all__ = [
    "TRACES",
    "NamedTrace",
    "Request",
    "Reuse",
    "Trace",
    "coarsened",
    "get_trace",
    "ideal_reuse",
    "list_traces",
    "load_trace",
]
