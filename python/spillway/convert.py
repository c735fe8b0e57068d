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
        first = tensors.get("state2", tensors.get("state1", tensors.get("exp_avg")))
        if first is None:
            raise ValueError(f"parameter {key}: neither state1 nor exp_avg is in its state")
        rule = _state.rule_of(saved)
        moments = _state.parse(saved, first.numel(), f"parameter {key}", rule)
        state[key] = convert(key, moments, first.shape)
    return state


def to_torch(state_dict):
    """For torch.optim.Adam and AdamW: step, exp_avg and exp_avg_sq in fp32; 8-bit state is
    dequantised exactly (code value times absmax). ValueError for Lion's state and AdEMAMix's, which
    torch.optim has no optimizer for."""
    def convert(key, moments, shape):
        if tuple(moments.values) != _state.MOMENTS["adamw"]:
            raise ValueError(f"parameter {key}: torch.optim has no optimizer that keeps "
                             f"{' and '.join(moments.values)}")
        m, v = _state.as_floats(moments)
        return {"step": torch.tensor(float(moments.step)), "exp_avg": m.view(shape),
                "exp_avg_sq": v.view(shape)}
    groups = [{"amsgrad": False, "maximize": False, "foreach": None, "capturable": False,
               "differentiable": False, "fused": None, "decoupled_weight_decay": True, **group}
              for group in state_dict["param_groups"]]
    return {"state": _each(state_dict, convert), "param_groups": groups}


def to_bitsandbytes(state_dict, nested=True):
    """For bitsandbytes' class of the same name; nested=False for 0.49.1 and older. 8-bit state stays
    as it is, with its tables."""
    def convert(_, moments, shape):
        qmaps = moments.tables and (moments.tables["m"], moments.tables.get("v"))
        return _state.entry(moments.step, _state.as_they_are(moments), shape, nested, qmaps)
    groups = [{"alpha": 0.0, "t_alpha": None, "t_beta3": None, **group}
              for group in state_dict["param_groups"]]
    return {"state": _each(state_dict, convert), "param_groups": groups}
