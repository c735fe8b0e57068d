"""Spillway: optimizers for PyTorch whose state is paged between the device and RAM or disk.

    optimizer = spillway.PagedAdamW8bit(model.parameters(), lr=2e-4)

The optimizers (spillway.optim) have bitsandbytes' class and argument names; keep_32bit() marks what
keeps 32-bit state. to_torch() and to_bitsandbytes() turn checkpoints into theirs. memory_summary() says
where the state is, reserve() what will be needed. All of these import torch when they are first used.

Device, Pager, Optim are the library's own nouns (spillway.h), by ctypes and without torch: tensors are
anything with `data_ptr()` or `ctypes.data`, contiguous, and must outlive the optimizer that knows
them. Errors of the library are raised as spillway.Error with its code and message.
"""
import importlib

from ._lib import Device, Error, Optim, Pager, code_table, version as _version

_LAZY = {
    "memory": ("memory_summary", "reserve"),
    "optim": ("Adam", "Adam8bit", "Adam32bit", "AdamW", "AdamW8bit", "AdamW32bit", "PagedAdam",
              "PagedAdam8bit", "PagedAdam32bit", "PagedAdamW", "PagedAdamW8bit",
              "PagedAdamW32bit", "keep_32bit"),
    "lion": ("Lion", "Lion8bit", "Lion32bit", "PagedLion", "PagedLion8bit", "PagedLion32bit"),
    "ademamix": ("AdEMAMix", "AdEMAMix8bit", "AdEMAMix32bit", "PagedAdEMAMix",
                 "PagedAdEMAMix8bit", "PagedAdEMAMix32bit"),
    "convert": ("to_torch", "to_bitsandbytes"),
    "trainers": ("patch", "unpatch"),
}
_HOME = {name: module for module, names in _LAZY.items() for name in names}

__version__ = _version()
__all__ = ["Device", "Error", "Optim", "Pager", "code_table", *_HOME]


def __getattr__(name):
    if name in _HOME:
        return getattr(importlib.import_module("." + _HOME[name], __name__), name)
    if name in _LAZY:
        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_HOME])
