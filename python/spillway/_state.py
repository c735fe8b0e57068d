"""One parameter's state in the forms that checkpoints have, and from one form to another.

Three layouts are read, by their keys (`parse`):
  bitsandbytes  step, state1, state2 and for 8-bit qmap1, qmap2, absmax1, absmax2; since 0.49.2 all
                but step lie in a dict of their own, NESTED. Lion has no state2; AdEMAMix's state1
                and absmax1 have a first dimension of two: m, and the slow m.
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

# The moments that a rule keeps.
MOMENTS = {"adamw": ("m", "v"), "lion": ("m",), "ademamix": ("m", "v", "m_slow")}

# What lies under each key of bitsandbytes' layout: parts of the library's, stacked where both are.
KEYS = {"state1": ("m", "m_slow"), "state2": ("v",), "absmax1": ("absmax_m", "absmax_m_slow"),
        "absmax2": ("absmax_v",)}

# Of each moment by its name: floats, or codes with a table and absmax (None for floats).
Moments = namedtuple("Moments", "step values tables absmax")

_GONE = ("max1", "max2", "new_max1", "new_max2", "gnorm_vec")


def tables():
    """The code tables of m and of v that the library uses: two tensors of 256 floats."""
    if not hasattr(tables, "pair"):
        tables.pair = tuple(torch.tensor(_lib.code_table(signed)) for signed in (True, False))
    return tables.pair


def table_of(moment):
    """The code table of a moment: that of v has no sign."""
    return tables()[moment == "v"]


def n_blocks(n, block=BLOCK):
    return (n + block - 1) // block


def stacked(parts, shape_of):
    """{key of bitsandbytes' layout: tensor} of {part: tensor}; shape_of(key) is what each part's
    gets before those of one key are stacked. Alone they are handed on, not copied."""
    result = {}
    for key, names in KEYS.items():
        here = [parts[name].view(shape_of(key)) for name in names if name in parts]
        if here:
            result[key] = here[0] if len(here) == 1 else torch.stack(here)
    return result


def entry(step, parts, shape, nested=True, qmaps=None):
    """A parameter's state in bitsandbytes' layout, of {part: tensor}. `qmaps`: the code tables of m
    and v, if not ours."""
    tensors = stacked(parts, lambda key: shape if key.startswith("state") else (-1,))
    if "absmax1" in tensors:
        qmap1, qmap2 = qmaps or tables()
        tensors["qmap1"] = qmap1
        if "absmax2" in tensors:
            tensors["qmap2"] = qmap2
    return {"step": step, NESTED: tensors} if nested else {"step": step, **tensors}


def _flat(value, dtype):
    value = value.to_local() if hasattr(value, "to_local") else value
    return value.detach().to("cpu", dtype).reshape(-1).contiguous()


def rule_of(saved):
    """Whose state it is, by its keys and shapes."""
    saved = {**saved, **saved.get(NESTED, {})}
    first, second = saved.get("state1"), saved.get("state2")
    if first is None:
        return "adamw"
    if second is None:
        return "lion"
    return "ademamix" if first.shape == (2, *second.shape) else "adamw"


def _check_keys(saved, rule, name):
    for key in ("max_exp_avg_sq", *_GONE):
        if saved.get(key) is not None:
            raise ValueError(f"{name}: its saved state has {key}: amsgrad and the 8-bit state "
                             "without blocks of old bitsandbytes cannot be continued")
    needed = ["state1", "state2"][:1 if rule == "lion" else 2]
    if any(saved.get(key) is None for key in needed) or "step" not in saved:
        raise ValueError(f"{name}: its saved state has the keys {', '.join(map(str, saved))}: "
                         "state1 and state2, or exp_avg and exp_avg_sq, and step are needed; of "
                         "Lion state1 and step")
    if not all(isinstance(saved[key], torch.Tensor) for key in needed):
        raise ValueError(f"{name}: its saved state1 or state2 is no tensor: of parameters that are "
                         "not sharded flatten_optimizer_state_dict loses them: leave it out")
    if rule == "lion" and saved.get("state2") is not None:
        raise ValueError(f"{name}: its saved state has state2, which Lion does not keep")


def parse(saved, n, name, rule="adamw"):
    """Moments of a saved state of n elements. ValueError names the parameter and what is wrong."""
    saved = {**saved, **saved.get(NESTED, {})}
    if "exp_avg" in saved:
        saved = {**saved, "state1": saved["exp_avg"], "state2": saved.get("exp_avg_sq")}
    _check_keys(saved, rule, name)
    is_8bit = saved["state1"].dtype == torch.uint8
    values = {}
    for key in ("state1", "state2"):
        names = [moment for moment in KEYS[key] if moment in MOMENTS[rule]]
        if names:
            flat = _flat(saved[key], torch.uint8 if is_8bit else torch.float32)
            if flat.numel() != n * len(names):
                raise ValueError(f"{name}: its saved {key} has {flat.numel()} elements, the "
                                 f"parameter has {n} and keeps {len(names)} in it")
            values.update(zip(names, flat.chunk(len(names)) if n else [flat] * len(names)))
    values = {moment: values[moment] for moment in MOMENTS[rule]}
    scales = _scales(saved, n, name, rule) if is_8bit else (None, None)
    return Moments(int(saved["step"]), values, *scales)


def _scales(saved, n, name, rule):
    maps, absmax = {}, {}
    for which in "12":
        names = [m for m in KEYS["state" + which] if m in MOMENTS[rule]]
        if not names:
            continue
        qmap = saved.get("qmap" + which, table_of(names[0]))
        scale = saved.get("absmax" + which)
        if scale is None or qmap.numel() != 256:
            raise ValueError(f"{name}: its 8-bit state lacks absmax{which}, or qmap{which} is not "
                             "256 values")
        rows = _flat(scale, torch.float32).view(len(names), -1)
        for moment, row in zip(names, rows):
            maps[moment], absmax[moment] = _flat(qmap, torch.float32), row
    lengths = {scale.numel() for scale in absmax.values()}
    if len(lengths) != 1 or lengths - {n_blocks(n), n_blocks(n, OLD_BLOCK)}:
        # A shard's absmax is padded to the longest shard's.
        if min(lengths) < n_blocks(n):
            raise ValueError(f"{name}: its 8-bit state has {sorted(lengths)} absmax for {n} "
                             f"elements: one for {BLOCK} or {OLD_BLOCK} is known")
        absmax = {moment: scale[:n_blocks(n)] for moment, scale in absmax.items()}
    return maps, absmax


def _block_of(moments):
    n = moments.values["m"].numel()
    return BLOCK if moments.absmax["m"].numel() == n_blocks(n) else OLD_BLOCK


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
    return all(torch.allclose(theirs, table_of(moment), rtol=1e-6, atol=0)
               for moment, theirs in moments.tables.items())


def as_floats(moments):
    """The moments in fp32: m, v, and what else there is, in MOMENTS' order."""
    if moments.tables is None:
        return tuple(moments.values.values())
    block = _block_of(moments)
    return tuple(dequantise(codes, moments.tables[moment], moments.absmax[moment], block)
                 for moment, codes in moments.values.items())


def as_bits(moments, bits):
    """{part: tensor} to put into state of 8 or 32 bits. Codes that are ours already are handed on
    as they are."""
    names = list(moments.values)
    if bits == 32:
        return dict(zip(names, as_floats(moments)))
    if moments.tables is not None and _block_of(moments) == BLOCK and _same_tables(moments):
        return as_they_are(moments)
    parts = {}
    for moment, values in zip(names, as_floats(moments)):
        parts[moment], parts["absmax_" + moment] = quantise(values, table_of(moment))
    return parts


def as_they_are(moments):
    """{part: tensor}, floats or codes and absmax."""
    scales = moments.absmax or {}
    return {**moments.values, **{"absmax_" + moment: scale for moment, scale in scales.items()}}
