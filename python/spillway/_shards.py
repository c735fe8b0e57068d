"""State of DTensor parameters (FSDP2): each process has its shard's, and says so to others by DTensors.

Moments have the parameter's shape, mesh and placements; two that share a key are stacked in front of
them, and their placements are one dimension further on. The absmax of blocks of 256: where the rows
of the first dimension are whole blocks and only it is sharded, they are a DTensor of (rows, blocks a
row), which torch.distributed.checkpoint may lay out anew for another number of processes. Elsewhere
a block may not survive that: absmax has a dimension for each dimension of the mesh, then the blocks
of the longest shard, and loads only onto a mesh like the one that saved it.
"""
import torch

from . import _engine, _state


def _rows_are_blocks(param):
    sharded = [p for p in param.placements if not p.is_replicate()]
    if param.ndim < 2 or any(not p.is_shard(0) for p in sharded):
        return False
    return param.shape[0] > 0 and (param.numel() // param.shape[0]) % _state.BLOCK == 0


def _beside(placements):
    """The placements of tensors stacked in a new first dimension."""
    from torch.distributed.tensor import Shard
    return [Shard(p.dim + 1) if p.is_shard() else p for p in placements]


def _like(param, local, shape, stride, placements=None):
    from torch.distributed.tensor import DTensor
    return DTensor.from_local(local, param.device_mesh, placements or param.placements,
                              run_check=False, shape=shape, stride=stride)


def _pair(one, other):
    """Two DTensors alike, stacked."""
    local = torch.stack([one.to_local(), other.to_local()])
    return _like(one, local, torch.Size((2, *one.shape)), (one.numel(), *one.stride()),
                 _beside(one.placements))


def _absmax(param, flat):
    from torch.distributed.tensor import DTensor, Shard
    local = _engine.local(param)
    if _rows_are_blocks(param):
        a_row = param.numel() // param.shape[0] // _state.BLOCK
        shape = torch.Size((param.shape[0], a_row))
        return _like(param, flat.view(local.shape[0], a_row), shape, (a_row, 1))
    mesh = param.device_mesh
    longest = _state.n_blocks(_longest(param))
    padded = torch.nn.functional.pad(flat, (0, longest - flat.numel()))
    dims = [mesh.size(d) for d in range(mesh.ndim)]
    shape = torch.Size((*dims, longest))
    return DTensor.from_local(padded.view(*[1] * mesh.ndim, longest), mesh,
                              [Shard(d) for d in range(mesh.ndim)], run_check=False, shape=shape,
                              stride=torch.empty(shape, device="meta").stride())


def _longest(param):
    """Elements of the largest shard: ceilings, as torch.chunk splits."""
    shape = list(param.shape)
    for dim, placement in enumerate(param.placements):
        if placement.is_shard():
            n = param.device_mesh.size(dim)
            shape[placement.dim] = -(-shape[placement.dim] // n)
    return torch.Size(shape).numel()


def entry(slot, param, parts):
    """A parameter's state in bitsandbytes' flat layout, of {part: tensor}."""
    shape = _engine.local(param).shape
    result = {"step": slot.step}
    for key, names in _state.KEYS.items():
        here = [_absmax(param, parts[name]) if key.startswith("absmax")
                else _like(param, parts[name].view(shape), param.shape, param.stride())
                for name in names if name in parts]
        if here:
            result[key] = here[0] if len(here) == 1 else _pair(*here)
    for which, table in zip("12", _state.tables()):
        if "absmax" + which in result:
            result["qmap" + which] = table.clone()
    return result


def own_part(saved, param):
    """A saved state with what of it belongs to this process. Whole tensors are cut as the
    parameter is."""
    if not _engine.is_sharded(param):
        return saved
    saved = {**saved, **saved.get(_state.NESTED, {})}
    saved.pop(_state.NESTED, None)  # whole tensors, which parse would take instead
    result = {}
    is_pair = getattr(saved.get("state1"), "shape", None) == (2, *param.shape)
    for key, value in saved.items():
        is_part = isinstance(value, torch.Tensor) and value.ndim and not key.startswith("qmap")
        if is_part and not _engine.is_sharded(value):
            value = _cut(key, value, param, (2,) if is_pair and key.endswith("1") else ())
        result[key] = value
    return result


def _cut(key, value, param, lead):
    """`lead`: the dimension that stacks two of them, or nothing."""
    from torch.distributed.tensor import distribute_tensor
    if value.shape == (*lead, *param.shape):
        whole = value
    elif key.startswith("absmax") and _rows_are_blocks(param):
        whole = value.reshape(*lead, param.shape[0], -1)
    else:
        raise ValueError(f"{key} of a whole tensor of {param.numel()} elements cannot be cut into "
                         "shards: save 32-bit state, or from as many processes as now")
    mesh = param.device_mesh
    placements = _beside(param.placements) if lead else param.placements
    return distribute_tensor(whole.to(mesh.device_type), mesh, placements, src_data_rank=None)
