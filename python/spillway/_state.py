"""One parameter's state in the forms that checkpoints have, and from one form to another.

Three layouts are read, by their keys (`parse`):
  bitsandbytes  step, state1, state2 and for 8-bit qmap1, qmap2, absmax1, absmax2; since 0.49.2 all
                but step lie in a dict of their own, NESTED.
  torch.optim   step, exp_avg, exp_avg_sq.
  ours          bitsandbytes' own layout (`entry`), so that either library loads the other's files.

8-bit state is codes in blocks of 256 elements of the flattened tensor: value = table[code] *
absmax[block]; block-wise dynamic quantisation, Dettmers et al., arXiv 2110.02861. Blocks of 2048
(bitsandbytes before 0.44) and foreign code tables are read and put into ours.

All tensors here are on the CPU and flat.
"""
from collections import namedtuple

import torch

from . import _lib

NESTED = "__bnb_optimizer_quant_state__"
BLOCK = 256
OLD_BLOCK = 2048

# m and v as floats, or as codes with tables and absmax.
Moments = namedtuple("Moments", "step m v tables absmax")

_GONE = ("max1", "max2", "new_max1", "new_max2", "gnorm_vec")


def tables():
    """The code tables of m and of v that the library uses: two tensors of 256 floats."""
    if not hasattr(tables, "pair"):
        tables.pair = tuple(torch.tensor(_lib.code_table(signed)) for signed in (True, False))
    return tables.pair


def n_blocks(n, block=BLOCK):
    return (n + block - 1) // block


def entry(step, moments, shape, nested=True):
    """A parameter's state in bitsandbytes' layout. `moments` is (m, v), and (absmax_m, absmax_v)
    follow for 8-bit state; the tensors are handed on, not copied."""
    tensors = {"state1": moments[0].view(shape), "state2": moments[1].view(shape)}
    if len(moments) == 4:
        qmap1, qmap2 = tables()
        tensors.update(qmap1=qmap1, qmap2=qmap2, absmax1=moments[2], absmax2=moments[3])
    return {"step": step, NESTED: tensors} if nested else {"step": step, **tensors}


def _flat(value, dtype):
    value = value.to_local() if hasattr(value, "to_local") else value
    return value.detach().to("cpu", dtype).reshape(-1).contiguous()


def parse(saved, n, name):
    """Moments of a saved state of n elements. ValueError names the parameter and what is wrong."""
    saved = {**saved, **saved.get(NESTED, {})}
    if "exp_avg" in saved:
        saved = {**saved, "state1": saved["exp_avg"], "state2": saved.get("exp_avg_sq")}
    for key in ("max_exp_avg_sq", *_GONE):
        if saved.get(key) is not None:
            raise ValueError(f"{name}: its saved state has {key}: amsgrad and the 8-bit state "
                             "without blocks of old bitsandbytes cannot be continued")
    if saved.get("state1") is None or saved.get("state2") is None or "step" not in saved:
        raise ValueError(f"{name}: its saved state has the keys {', '.join(map(str, saved))}: "
                         "state1 and state2, or exp_avg and exp_avg_sq, and step are needed")
    if not all(isinstance(saved[key], torch.Tensor) for key in ("state1", "state2")):
        raise ValueError(f"{name}: its saved state1 or state2 is no tensor: of parameters that are "
                         "not sharded flatten_optimizer_state_dict loses them: leave it out")
    step = int(saved["step"])
    is_8bit = saved["state1"].dtype == torch.uint8
    dtype = torch.uint8 if is_8bit else torch.float32
    m, v = _flat(saved["state1"], dtype), _flat(saved["state2"], dtype)
    if m.numel() != n or v.numel() != n:
        raise ValueError(f"{name}: its saved state has {m.numel()} and {v.numel()} elements, "
                         f"the parameter has {n}")
    if not is_8bit:
        return Moments(step, m, v, None, None)
    return Moments(step, m, v, *_scales(saved, n, name))


def _scales(saved, n, name):
    maps, absmax = [], []
    for which, default in zip("12", tables()):
        qmap, scale = saved.get("qmap" + which, default), saved.get("absmax" + which)
        if scale is None or qmap.numel() != 256:
            raise ValueError(f"{name}: its 8-bit state lacks absmax{which}, or qmap{which} is not "
                             "256 values")
        maps.append(_flat(qmap, torch.float32))
        absmax.append(_flat(scale, torch.float32))
    lengths = {scale.numel() for scale in absmax}
    if len(lengths) != 1 or lengths - {n_blocks(n), n_blocks(n, OLD_BLOCK)}:
        # A shard's absmax is padded to the longest shard's.
        if min(lengths) < n_blocks(n):
            raise ValueError(f"{name}: its 8-bit state has {sorted(lengths)} absmax for {n} "
                             f"elements: one for {BLOCK} or {OLD_BLOCK} is known")
        absmax = [scale[:n_blocks(n)] for scale in absmax]
    return tuple(maps), tuple(absmax)


def _block_of(moments):
    n = moments.m.numel()
    return BLOCK if moments.absmax[0].numel() == n_blocks(n) else OLD_BLOCK


def dequantise(codes, table, absmax, block=BLOCK):
    """table[code] * absmax[block], in fp32."""
    scale = absmax.repeat_interleave(block)[:codes.numel()]
    return table[codes.long()] * scale


def quantise(values, table):
    """(codes, absmax): the nearest code of value / absmax in blocks of 256, ties to the even code;
    an element that is negative and nearest to -1 gets the first code, which is -0.993."""
    n = values.numel()
    blocks = torch.nn.functional.pad(values, (0, -n % BLOCK)).view(-1, BLOCK)
    absmax = blocks.abs().amax(1)
    ratio = blocks / torch.where(absmax > 0, absmax, torch.ones(()))[:, None]
    middle = (table[1:].double() + table[:-1].double()) / 2
    ratio = ratio.double().reshape(-1)[:n].contiguous()
    codes = torch.bucketize(ratio, middle)
    tie = (codes < 255) & (codes % 2 == 1) & (ratio == middle[codes.clamp(max=254)])
    return (codes + tie).to(torch.uint8), absmax


def _same_tables(moments):
    """True where the codes mean what ours mean: tables made by another build of torch differ in the
    last bits of some values, which is less than the absmax's own rounding."""
    return all(torch.allclose(theirs, ours, rtol=1e-6, atol=0)
               for theirs, ours in zip(moments.tables, tables()))


def as_floats(moments):
    """(m, v) in fp32."""
    if moments.tables is None:
        return moments.m, moments.v
    block = _block_of(moments)
    return tuple(dequantise(codes, table, absmax, block) for codes, table, absmax in
                 zip((moments.m, moments.v), moments.tables, moments.absmax))


def as_bits(moments, bits):
    """The parts to put into state of 8 or 32 bits: (m, v) or (m, v, absmax_m, absmax_v). Codes that
    are ours already are handed on as they are."""
    if bits == 32:
        return as_floats(moments)
    if moments.tables is not None and _block_of(moments) == BLOCK and _same_tables(moments):
        return (moments.m, moments.v, *moments.absmax)
    pairs = [quantise(values, table) for values, table in zip(as_floats(moments), tables())]
    return pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]
