"""Optimizer checkpoints from one library's layout to another's, as state_dicts on the CPU.

What can be loaded needs no conversion: load_state_dict of our optimizers takes ours, bitsandbytes' and
torch.optim's. These two are for the way out.
"""
import torch

from . import _state


def _each(state_dict, convert):
    state = {}
    for key, saved in state_dict["state"].items():
        tensors = {**saved, **saved.get(_state.NESTED, {})}
        first = tensors.get("state1", tensors.get("exp_avg"))
        if first is None:
            raise ValueError(f"parameter {key}: neither state1 nor exp_avg is in its state")
        shape = first.shape
        state[key] = convert(_state.parse(saved, first.numel(), f"parameter {key}"), shape)
    return state


def to_torch(state_dict):
    """For torch.optim.Adam and AdamW: step, exp_avg and exp_avg_sq in fp32; 8-bit state is
    dequantised exactly (code value times absmax)."""
    def convert(moments, shape):
        m, v = _state.as_floats(moments)
        return {"step": torch.tensor(float(moments.step)), "exp_avg": m.view(shape),
                "exp_avg_sq": v.view(shape)}
    groups = [{"amsgrad": False, "maximize": False, "foreach": None, "capturable": False,
               "differentiable": False, "fused": None, "decoupled_weight_decay": True, **group}
              for group in state_dict["param_groups"]]
    return {"state": _each(state_dict, convert), "param_groups": groups}


def to_bitsandbytes(state_dict, nested=True):
    """For bitsandbytes' Adam and AdamW; nested=False for 0.49.1 and older. 8-bit state stays as it
    is, with its tables."""
    def convert(moments, shape):
        tensors = {"state1": moments.m.view(shape), "state2": moments.v.view(shape)}
        if moments.tables is not None:
            tensors.update(qmap1=moments.tables[0], qmap2=moments.tables[1],
                           absmax1=moments.absmax[0], absmax2=moments.absmax[1])
        if nested:
            return {"step": moments.step, _state.NESTED: tensors}
        return {"step": moments.step, **tensors}
    groups = [{"alpha": 0.0, "t_alpha": None, "t_beta3": None, **group}
              for group in state_dict["param_groups"]]
    return {"state": _each(state_dict, convert), "param_groups": groups}
