"""A Llama-shaped language model of random NF4 weights with LoRA adapters, in plain torch.

For benches of optimizers on a GPU: nothing is loaded, quantised or downloaded. Codes and scales
are drawn on the device, so that 70 billion weights (36 GiB) take seconds. What a step costs and
holds is as in QLoRA (Dettmers et al., arXiv 2305.14314): blocks of 64 codes, their scales in 8
bits; each linear layer dequantises its weight in forward and again in backward; adapters and their
gradients are fp32, the arithmetic bf16; layers are checkpointed. The loss is computed in chunks of
tokens: no matrix of all logits exists. bitsandbytes' kernel dequantises where use_bitsandbytes()
found it.
"""
import collections
import contextlib
import math
import sys

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

Shape = collections.namedtuple("Shape", "vocab hidden wide layers heads kv_heads")
SHAPES = {
    "tiny": Shape(512, 128, 256, 2, 4, 2),
    "8b": Shape(128256, 4096, 14336, 32, 32, 8),
    "32b": Shape(152064, 5120, 27648, 64, 40, 8),
    "70b": Shape(128256, 8192, 28672, 80, 64, 8),
}
# The 16 values of NF4, as in the paper's appendix E.
NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0)
BLOCK = 64           # weights that share a scale
SCALES = 256         # scales that share a scale of theirs
SLICE = 1 << 24      # codes dequantised at a time: bounds the temporary indices to 64 MiB
LOSS_TOKENS = 512    # of which there are logits at a time
LORA_ALPHA = 16

_pairs = {}          # by device: both values of each of the 256 code bytes, as one 32-bit word
_bitsandbytes = None


def use_bitsandbytes(device):
    """Takes bitsandbytes' kernel from now on if it is importable and agrees with ours on this
    device. Says which is used."""
    global _bitsandbytes
    try:
        import bitsandbytes.functional as functional
        weight = Nf4((64, 512), device, torch.Generator(device).manual_seed(7))
        ours = weight.dequantised()
        _bitsandbytes = functional
        if not torch.allclose(ours, weight.dequantised(), rtol=2**-6, atol=1e-6):
            raise RuntimeError("its values differ")
    except Exception as error:  # a package of another CUDA version fails in many ways
        _bitsandbytes = None
        print(f"dequantising in plain torch; bitsandbytes: {str(error)[:200]}", file=sys.stderr,
              flush=True)
    return "bitsandbytes" if _bitsandbytes else "torch"


def pairs_on(device):
    if device not in _pairs:
        values = torch.tensor(NF4, dtype=torch.bfloat16)
        byte = torch.arange(256)
        both = torch.stack((values[byte >> 4], values[byte & 15]), 1)
        _pairs[device] = both.view(torch.int32).view(-1).to(device)
    return _pairs[device]


class Nf4:
    """A weight of (out, in): two codes a byte, the earlier one in the high half."""

    def __init__(self, shape, device, generator):
        self.shape, n = shape, shape[0] * shape[1]
        self.group = math.gcd(n // BLOCK, SCALES)
        draw = dict(device=device, generator=generator)
        self.codes = torch.randint(0, 256, (n // 2, 1), dtype=torch.uint8, **draw)
        self.levels = torch.randint(128, 256, (n // BLOCK,), dtype=torch.uint8, **draw)
        # Codes drawn evenly have a mean above 0, which would add up over the layers to one large
        # direction: half of the scales are negative.
        sign = torch.randint(0, 2, (n // BLOCK // self.group, 1), **draw) * 2 - 1
        rms = math.sqrt(sum(v * v for v in NF4) / 16 * sum(l * l for l in range(128, 256)) / 128)
        self.scales = sign * (1.28 / math.sqrt(shape[1]) / rms)

    def absmax(self):
        return (self.levels.view(-1, self.group) * self.scales).view(-1)

    def dequantised(self):
        if _bitsandbytes:
            return _bitsandbytes.dequantize_4bit(self.codes, _bitsandbytes.QuantState(
                absmax=self.absmax(), shape=torch.Size(self.shape), dtype=torch.bfloat16,
                blocksize=BLOCK, quant_type="nf4"))
        out = torch.empty(self.shape, dtype=torch.bfloat16, device=self.codes.device)
        pairs, words, codes = pairs_on(out.device), out.view(-1).view(torch.int32), \
            self.codes.view(-1)
        for at in range(0, codes.numel(), SLICE):
            torch.index_select(pairs, 0, codes[at:at + SLICE].int(), out=words[at:at + SLICE])
        out.view(-1, BLOCK).mul_(self.absmax()[:, None])
        return out


class FrozenLinear(torch.autograd.Function):
    """x W^T. The weight has no gradient, so neither x nor the dequantised weight is kept."""

    @staticmethod
    def forward(context, x, weight):
        context.weight = weight
        return x @ weight.dequantised().t()

    @staticmethod
    def backward(context, gradient):
        return gradient @ context.weight.dequantised(), None


class ChunkedLoss(torch.autograd.Function):
    """Mean cross entropy of a linear head; the gradient of the hidden states is made on the way."""

    @staticmethod
    def forward(context, hidden, head, targets):
        total, gradient = hidden.new_zeros((), dtype=torch.float32), torch.empty_like(hidden)
        for at in range(0, len(targets), LOSS_TOKENS):
            part = slice(at, at + LOSS_TOKENS)
            logits = (hidden[part] @ head.t()).float()
            total += F.cross_entropy(logits, targets[part], reduction="sum")
            logits.sub_(logits.logsumexp(1, keepdim=True)).exp_()
            logits.scatter_add_(1, targets[part, None], torch.full_like(logits[:, :1], -1.0))
            gradient[part] = (logits.to(hidden.dtype) @ head) / len(targets)
            del logits
        context.save_for_backward(gradient)
        return total / len(targets)

    @staticmethod
    def backward(context, gradient):
        return context.saved_tensors[0] * gradient.to(context.saved_tensors[0].dtype), None, None


def linear_shapes(shape):
    """(out, in) of the seven linear layers of a block, by name."""
    kv = shape.hidden // shape.heads * shape.kv_heads
    return {"q": (shape.hidden, shape.hidden), "k": (kv, shape.hidden), "v": (kv, shape.hidden),
            "o": (shape.hidden, shape.hidden), "gate": (shape.wide, shape.hidden),
            "up": (shape.wide, shape.hidden), "down": (shape.hidden, shape.wide)}


def make_adapters(shape, rank, device, seed=0):
    """One dict of (A, B) a block: fp32 parameters as PEFT makes them, B zero."""
    generator = torch.Generator(device).manual_seed(seed)
    blocks = []
    for _ in range(shape.layers):
        block = {}
        for name, (n_out, n_in) in linear_shapes(shape).items():
            a = torch.empty(rank, n_in, device=device)
            a.uniform_(-1 / math.sqrt(n_in), 1 / math.sqrt(n_in), generator=generator)
            block[name] = (torch.nn.Parameter(a),
                           torch.nn.Parameter(torch.zeros(n_out, rank, device=device)))
        blocks.append(block)
    return blocks


def copy_adapters(blocks):
    return [{name: tuple(torch.nn.Parameter(p.detach().clone()) for p in pair)
             for name, pair in block.items()} for block in blocks]


def parameters(blocks):
    return [p for block in blocks for pair in block.values() for p in pair]


def lora_linear(x, weight, pair):
    a, b = (p.to(torch.bfloat16) for p in pair)
    return torch.addmm(FrozenLinear.apply(x, weight), x @ a.t(), b.t(),
                       alpha=LORA_ALPHA / a.shape[0])


def rotated(x, angles):
    """Rotary position embedding of (batch, tokens, heads, size)."""
    cos, sin = angles
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def fast_attention(device):
    """On a GPU the plain kernel, which makes the matrix of all scores, is refused."""
    if torch.device(device).type != "cuda":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])


class Model:
    """The frozen part. Adapters are handed to loss(), so that several sets can share it."""

    def __init__(self, shape, device, seed=1, progress=lambda text: None):
        self.shape, self.device = shape, torch.device(device)
        generator = torch.Generator(device).manual_seed(seed)
        make = lambda scale: torch.randn(shape.vocab, shape.hidden, device=device,
                                         dtype=torch.bfloat16, generator=generator).mul_(scale)
        self.embedding = make(1.0)
        self.head = make(1.28 / math.sqrt(shape.hidden))
        self.norm = torch.ones(shape.hidden, device=device, dtype=torch.bfloat16)
        self.blocks = []
        for number in range(shape.layers):
            self.blocks.append({name: Nf4(size, self.device, generator)
                                for name, size in linear_shapes(shape).items()})
            if number % 20 == 19:
                progress(f"{number + 1} of {shape.layers} blocks built")

    def _angles(self, n_tokens):
        half = self.shape.hidden // self.shape.heads // 2
        rate = 500000.0 ** (-torch.arange(half, device=self.device) / half)
        angle = torch.arange(n_tokens, device=self.device)[:, None, None] * rate
        return angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)

    def _attention(self, x, weights, pairs, angles, batch):
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        split = lambda name, n: lora_linear(x, weights[name], pairs[name]).view(
            batch, -1, n, self.shape.hidden // heads)
        q, k = rotated(split("q", heads), angles), rotated(split("k", kv_heads), angles)
        v = split("v", kv_heads)
        # Grouped heads are spelt out: which kernels take them unexpanded differs by version.
        k, v = (t.repeat_interleave(heads // kv_heads, 2) for t in (k, v))
        mixed = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)),
                                               is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(x.shape[0], -1)
        return lora_linear(mixed, weights["o"], pairs["o"])

    def _block(self, x, weights, pairs, angles, batch):
        normed = lambda t: F.rms_norm(t, self.norm.shape, self.norm, 1e-5)
        x = x + self._attention(normed(x), weights, pairs, angles, batch)
        y = normed(x)
        gate, up = (lora_linear(y, weights[name], pairs[name]) for name in ("gate", "up"))
        return x + lora_linear(F.silu(gate) * up, weights["down"], pairs["down"])

    def loss(self, tokens, adapters, checkpointing=True):
        """Of (batch, n + 1) token ids: each predicts the next."""
        batch, angles = tokens.shape[0], self._angles(tokens.shape[1] - 1)
        x = self.embedding[tokens[:, :-1].reshape(-1)]
        with fast_attention(self.device):
            for weights, pairs in zip(self.blocks, adapters):
                if checkpointing:
                    x = checkpoint(self._block, x, weights, pairs, angles, batch,
                                   use_reentrant=False, preserve_rng_state=False)
                else:
                    x = self._block(x, weights, pairs, angles, batch)
        x = F.rms_norm(x, self.norm.shape, self.norm, 1e-5)
        return ChunkedLoss.apply(x, self.head, tokens[:, 1:].reshape(-1))

    def backward(self, tokens, adapters, checkpointing=True):
        """Forward and backward; the loss as a tensor, which nobody waited for."""
        loss = self.loss(tokens, adapters, checkpointing)
        with fast_attention(self.device):  # checkpointing runs the forward pass again in here
            loss.backward()
        return loss.detach()


def random_tokens(shape, batch, n, device, seed):
    """Ids whose low numbers are frequent, so that there is something to learn."""
    draw = torch.rand(batch, n + 1, device=device,
                      generator=torch.Generator(device).manual_seed(seed))
    return (draw ** 4 * shape.vocab).long()
