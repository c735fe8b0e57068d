"""Spillway from Python: the C calls of spillway.h, by ctypes.

Small on purpose: what the parity tests use. Tensors are anything with `data_ptr()` (torch) or
`ctypes.data` (numpy) on the CPU, contiguous; they must outlive the optimizer that knows them.
Errors are raised as spillway.Error with the library's code and message.

    with Device() as device, Pager(device, paging="copy") as pager, Optim(pager) as optim:
        optim.add(parameter, gradient)
        optim.step(lr=1e-3)
"""
from ._lib import Device, Error, Optim, Pager, code_table

__all__ = ["Device", "Error", "Optim", "Pager", "code_table"]
