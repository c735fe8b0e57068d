"""NF4 with double quantisation against bitsandbytes on the CPU: codes, scales, values.

bitsandbytes sums the mean of the absmax in fp32, so its offset is handed over. Its thresholds on the
CPU are midpoints rounded in fp32, ours are those of its GPU code, which differ by one ulp where a
midpoint is no float; and it divides by the absmax of a last block that is not full where it
multiplies by the reciprocal elsewhere. Only there may codes differ, and only by one.

Of its CPU codes of absmax some 0.2 or 0.3 % are the second nearest value of the map, by less than
2^-14; ours are always the nearest. Where all absmax are equal its code is 0 and ours that of the
value 0; the scale there is 0, and so the code means nothing.
"""
import os
import struct
import subprocess

import numpy as np
import pytest

torch = pytest.importorskip("torch")
functional = pytest.importorskip("bitsandbytes.functional")

BLOCK, NESTED = 64, 256


def normal(n, seed):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32) * 0.02


def like_weights(n, seed):
    """Rows of very different size, some zeros, stored as bf16."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * np.exp(rng.standard_normal(n // 100 + 1)).repeat(100)[:n]
    x[rng.random(n) < 0.05] = 0
    return torch.tensor(x).to(torch.bfloat16).float().numpy()


CASES = [(make, n) for make in (normal, like_weights)
         for n in (64, 128, 4096, 64 * 256, 64 * 257, 1 << 20, 66, 1000, 64 * 256 + 10)]


def theirs(x):
    packed, state = functional.quantize_4bit(torch.tensor(x), blocksize=BLOCK, quant_type="nf4",
                                             compress_statistics=True)
    values = functional.dequantize_4bit(packed, state)
    return packed.numpy().reshape(-1), state, values.numpy().reshape(-1)


def ours(tools_dir, x, offset=None):
    n, blocks = x.size, -(-x.size // BLOCK)
    words = [os.path.join(tools_dir, "nf4_probe"), str(n)]
    if offset is not None:
        words.append("%08x" % struct.unpack("<I", struct.pack("<f", offset))[0])
    done = subprocess.run(words, input=x.tobytes(), capture_output=True, timeout=120, check=True)
    sizes = [(np.uint8, (n + 1) // 2), (np.uint8, blocks), (np.float32, -(-blocks // NESTED)),
             (np.float32, 1), (np.float32, n)]
    at, parts = 0, []
    for kind, count in sizes:
        parts.append(np.frombuffer(done.stdout, kind, count, at))
        at += parts[-1].nbytes
    assert at == len(done.stdout)
    return parts


def nibbles(packed, n):
    return np.stack([packed >> 4, packed & 15], 1).reshape(-1)[:n].astype(int)


def scaled(x):
    """x / absmax of its block, in double."""
    padded = np.pad(x.astype(np.float64), (0, -x.size % BLOCK)).reshape(-1, BLOCK)
    absmax = np.abs(padded).max(1, keepdims=True)
    return (padded / np.maximum(absmax, 1e-38)).reshape(-1)[:x.size]


@pytest.mark.parametrize("make,n", CASES)
def test_codes_are_those_of_bitsandbytes(tools_dir, make, n):
    x = make(n, n)
    packed, state, _ = theirs(x)
    mine, wanted = nibbles(ours(tools_dir, x, state.offset.item())[0], n), nibbles(packed, n)
    table = state.code.numpy().astype(np.float64)
    edges = (table[1:] + table[:-1]) / 2
    for i in np.flatnonzero(mine != wanted):
        assert abs(mine[i] - wanted[i]) == 1
        assert abs(scaled(x)[i] - edges[min(mine[i], wanted[i])]) < 2.0 ** -23
    assert (mine != wanted).sum() <= 1 + n // 100_000


@pytest.mark.parametrize("make,n", CASES)
def test_scales_are_those_of_bitsandbytes(tools_dir, make, n):
    x = make(n, n)
    _, state, _ = theirs(x)
    _, codes, nested, offset, _ = ours(tools_dir, x, state.offset.item())
    np.testing.assert_array_equal(nested, state.state2.absmax.numpy())
    assert offset[0] == state.offset.item()
    wanted = state.absmax.numpy()
    scale = np.repeat(nested, NESTED)[:codes.size].astype(np.float64)
    table = state.state2.code.numpy().astype(np.float64)
    absmax = np.abs(np.pad(x, (0, -n % BLOCK)).reshape(-1, BLOCK)).max(1)
    target = (absmax - offset[0]).astype(np.float64) / np.maximum(scale, 1e-38)
    off, other = np.abs(table[codes] - target), np.abs(table[wanted] - target)
    meant = scale > 0
    assert np.all(off[meant] <= other[meant] + 2.0 ** -24)
    assert np.all(other[meant] <= off[meant] + 2.0 ** -14)
    assert ((codes != wanted) & meant).sum() <= 2 + codes.size // 200


@pytest.mark.parametrize("make,n", CASES)
def test_values_are_those_of_bitsandbytes_within_an_ulp(tools_dir, make, n):
    x = make(n, n)
    packed, state, wanted = theirs(x)
    mine_packed, codes, nested, _, mine = ours(tools_dir, x, state.offset.item())
    scaled_same = (codes == state.absmax.numpy()) | (nested.repeat(NESTED)[:codes.size] == 0)
    same = (nibbles(mine_packed, n) == nibbles(packed, n)) & scaled_same.repeat(BLOCK)[:n]
    assert same.mean() > 0.98
    assert np.all(np.abs(mine - wanted)[same] <= np.spacing(np.abs(wanted))[same])


def test_the_offset_is_the_mean(tools_dir):
    x = like_weights(1 << 20, 1)
    _, state, _ = theirs(x)
    assert ours(tools_dir, x)[3][0] == pytest.approx(state.offset.item(), rel=1e-6)
