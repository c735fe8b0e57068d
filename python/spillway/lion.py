"""Lion with bitsandbytes' class and argument names, whose state is paged.

One moment a parameter, so half of Adam's state. Chen et al., arXiv 2302.06675: a parameter moves by
lr in the direction of sign(beta1 * m + (1 - beta1) * g); then m = beta2 * m + (1 - beta2) * g. Decay is
decoupled and comes first, as in the paper and in bitsandbytes. In fp32 the bits are bitsandbytes'.
"""
from . import optim

__all__ = ["Lion", "Lion8bit", "Lion32bit", "PagedLion", "PagedLion8bit", "PagedLion32bit"]


class Lion(optim.Optimizer):
    """Arguments as bitsandbytes':

    params        iterable of parameters, or of dicts that are groups
    lr            a float, or a tensor of one element; a third of AdamW's is usual
    betas         of the direction, and of the moment
    weight_decay  decoupled
    """

    _rule = "lion"

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0, optim_bits=32, args=None,
                 min_8bit_size=4096, is_paged=False, **options):
        # eps: bitsandbytes' groups have it; it means nothing.
        defaults = {"lr": lr, "betas": betas, "eps": 0.0, "weight_decay": weight_decay}
        super().__init__(params, defaults, optim_bits, args, min_8bit_size, is_paged, **options)


class Lion8bit(Lion):
    _bits = 8


class Lion32bit(Lion):
    _bits = 32


class PagedLion(Lion):
    _paged = True


class PagedLion8bit(Lion8bit):
    _paged = True


class PagedLion32bit(Lion32bit):
    _paged = True
