"""AdEMAMix with bitsandbytes' class and argument names, whose state is paged.

AdamW with a second, slow first moment. Pagliardini et al., arXiv 2409.03137: p moves by
lr * (m_hat + alpha * m_slow) / (sqrt(v_hat) + eps), m_slow by beta3 and without correction. `t_alpha`
and `t_beta3` warm alpha and beta3 up over so many steps. Decay is decoupled and comes first, unless
`decay_order` says otherwise.
"""
import math

from . import optim

__all__ = ["AdEMAMix", "AdEMAMix8bit", "AdEMAMix32bit", "PagedAdEMAMix", "PagedAdEMAMix8bit",
           "PagedAdEMAMix32bit"]


class AdEMAMix(optim.Optimizer):
    """Arguments as bitsandbytes':

    params           iterable of parameters, or of dicts that are groups
    lr               a float, or a tensor of one element (read at every step)
    betas            three: of the fast moment, of the second, of the slow
    alpha            weight of the slow moment
    t_alpha, t_beta3 steps over which alpha and the third beta warm up; None: from the start
    eps              as Adam's
    weight_decay     decoupled
    """

    _rule, _n_betas = "ademamix", 3

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999, 0.9999), alpha=5.0, t_alpha=None,
                 t_beta3=None, eps=1e-8, weight_decay=1e-2, optim_bits=32, min_8bit_size=4096,
                 is_paged=False, **options):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                    "alpha": alpha, "t_alpha": t_alpha, "t_beta3": t_beta3}
        super().__init__(params, defaults, optim_bits, None, min_8bit_size, is_paged, **options)

    def _group_fields(self, group):
        fields = super()._group_fields(group)
        alpha = float(group["alpha"])
        if not 0 <= alpha < math.inf:
            raise ValueError(f"Invalid alpha value: {alpha}")
        for key in ("t_alpha", "t_beta3"):
            steps = group[key] or 0
            if int(steps) != steps or steps < 0:
                raise ValueError(f"Invalid {key} value: {steps}")
            fields[key] = int(steps)
        if fields["t_beta3"] and not (fields["beta1"] > 0 and fields["beta3"] > 0):
            raise ValueError("Invalid t_beta3 value: beta1 and beta3 must be above 0 for it")
        return {**fields, "alpha": alpha}


class AdEMAMix8bit(AdEMAMix):
    _bits = 8


class AdEMAMix32bit(AdEMAMix):
    _bits = 32


class PagedAdEMAMix(AdEMAMix):
    _paged = True


class PagedAdEMAMix8bit(AdEMAMix8bit):
    _paged = True


class PagedAdEMAMix32bit(AdEMAMix32bit):
    _paged = True
