"""Optimizers for PyTorch with bitsandbytes' class and argument names, whose state is paged.

    optimizer = spillway.PagedAdamW8bit(model.parameters(), lr=2e-4)

The classes: {Adam, AdamW, Lion, AdEMAMix} x {"", 8bit, 32bit}, and each with Paged before it; Lion and
AdEMAMix are in files of their own. A Paged class pages its state (paging="auto"); the others keep all
of it on the device (paging="off") unless `is_paged` or `paging` say otherwise. Adam and AdamW are one
rule, as in bitsandbytes: decoupled weight decay (arXiv 1711.05101) in torch.optim.AdamW's order; only
the default decay differs, 0 and 1e-2.

Parameters: CPU or CUDA tensors of float32, bfloat16 or float16, also DTensor shards (FSDP2), on
several devices if need be. On CUDA a step is queued on the current stream and the host does not
wait. State is made at the first step, or by load_state_dict; on which device, is decided then.
"""
import copy
import inspect
import math
import numbers
import threading
from collections import defaultdict
from collections.abc import MutableMapping

import torch

from . import _engine, _pager_options, _shards, _state, memory

_no_dynamo = getattr(torch, "_disable_dynamo", lambda function: function)
_VERSION = 1


def keep_32bit(target):
    """Marks a parameter, or all of a module's own and its children's, so that an optimizer made
    afterwards keeps their state in 32 bits. Returns the target."""
    params = [target] if isinstance(target, torch.Tensor) else target.parameters()
    for param in params:
        param._spw_state_bits = 32
    return target


class ParamState(MutableMapping):
    """What optimizer.state[p] is: step, state1, state2 and for 8-bit state qmap1, qmap2, absmax1,
    absmax2; as bitsandbytes has them, so Lion has no state2, and AdEMAMix's state1 and absmax1 are
    two. A read copies out of the pager to a new CPU tensor; an assignment writes through."""

    def __init__(self, slot):
        self._slot = slot

    def _shape(self, key):
        return _engine.local(self._slot.param).shape if key in ("state1", "state2") else (-1,)

    def _names(self, key):
        """The parts under a key; none: the state has no such key."""
        return [name for name in _state.KEYS.get(key, ()) if name in self._slot.parts()]

    def __getitem__(self, key):
        if key == "step":
            return self._slot.step
        if key in ("qmap1", "qmap2") and self._names("absmax" + key[-1]):
            return _state.tables()[key == "qmap2"].clone()
        names = self._names(key)
        if not names:
            raise KeyError(key)
        parts = {name: self._slot.read(name) for name in names}
        return _state.stacked(parts, self._shape)[key]

    def __setitem__(self, key, value):
        if key == "step":
            self._slot.step = int(value)
            return
        names = self._names(key)
        if not names:
            raise KeyError(f"{key}: step, state1 and state2 can be set, and absmax1 and absmax2 "
                           "of 8-bit state, where there are such")
        old = self[key]
        if value.shape != old.shape:
            raise ValueError(f"{key} of shape {tuple(value.shape)}: it is {tuple(old.shape)}")
        flat = value.detach().to("cpu", old.dtype).reshape(len(names), -1)
        for name, part in zip(names, flat):
            self._slot.write(name, part)

    def __delitem__(self, key):
        raise TypeError("a part of the state cannot be deleted")

    def __iter__(self):
        yield "step"
        known = ("state1", "state2", "absmax1", "absmax2")
        yield from (key for key in known if self._names(key))
        yield from (f"qmap{which}" for which in "12" if self._names(f"absmax{which}"))

    def __len__(self):
        return sum(1 for _ in self)

    def __repr__(self):
        return f"<{self._slot.bits}-bit state of {self._slot.n} elements, step {self['step']}>"

_COUNTS = {2: "two", 3: "three"}


class Optimizer(torch.optim.Optimizer):
    """What all classes have. Arguments as bitsandbytes':

    optim_bits    32 or 8 for a class without bits in its name
    min_8bit_size tensors of fewer elements keep 32-bit state; a sharded tensor's global size counts
    is_paged      for a class without Paged in its name: True pages
    args          not supported: anything but None is a ValueError

    and Spillway's, by keyword:

    state_mem     cap on the state that stays on the device between steps: bytes, "2GiB", or "25%"
    occupancy     share of the device that may be in use at the peak; default 0.90
    store         "ram" or "file:PATH": where state rests. The file is scratch, its name gets a
                  suffix for each process
    page_size     a power of two from 64KiB to 16MiB; default by the size of the state
    max_norm      > 0: clips gradients by their global norm in the step, without waiting for it
    paging        "auto", "copy", "mapped", "unified" or "off"
    host_mem      cap on the RAM that a ram store takes
    pinned_mem    CUDA: cap on pinned host memory
    decay_order   "before" the update, as torch.optim; or "after" it, as bitsandbytes' Adam and
                  AdEMAMix on a GPU

    Non-finite gradients: see spw_optim_step in spillway.h.
    """

    _step_supports_amp_scaling = True  # GradScaler hands us its scale and verdict on the device
    _rule, _n_betas, _bits, _paged = "adamw", 2, None, False

    def __init_subclass__(cls, **named):
        """Each class has all its arguments in its signature and its help, which looks in the class
        alone: its own and, in place of **options, those that all have."""
        super().__init_subclass__(**named)
        if "__init__" not in cls.__dict__:
            cls.__doc__ = cls.__doc__ or cls.__mro__[1].__doc__
            return
        shared = Optimizer.__doc__ or "    optim_bits"  # none with python -OO
        cls.__doc__ = (cls.__doc__ or "") + "\n" + shared[shared.index("    optim_bits"):]
        own = inspect.signature(cls.__init__).parameters.values()
        common = inspect.signature(Optimizer.__init__).parameters.values()
        cls.__signature__ = inspect.Signature(
            [p for p in own if p.name != "self" and p.kind is not p.VAR_KEYWORD] +
            [p for p in common if p.kind is p.KEYWORD_ONLY])

    def __init__(self, params, defaults, optim_bits=32, args=None, min_8bit_size=4096,
                 is_paged=False, *, state_mem=None, occupancy=None, store=None, page_size=None,
                 max_norm=0.0, paging=None, host_mem=None, pinned_mem=None, decay_order="before"):
        if args is not None:
            raise ValueError("args is not supported: leave it out")
        if optim_bits != 32 and self._bits is not None or optim_bits not in (8, 32):
            raise ValueError(f"optim_bits={optim_bits!r}: 8 or 32, and only for a class without "
                             "bits in its name")
        if not (isinstance(max_norm, numbers.Real) and 0 <= max_norm < math.inf):
            raise ValueError(f"max_norm={max_norm!r}: a finite number, 0 for no clipping")
        if is_paged and paging == "off":
            raise ValueError("is_paged=True and paging=\"off\" contradict each other: leave one out")
        if decay_order not in ("before", "after"):
            raise ValueError(f"decay_order={decay_order!r}: \"before\" or \"after\" the update")
        if paging is None:
            paging = "auto" if is_paged or self._paged else "off"
        self._options = {"paging": paging, "state_mem": state_mem, "occupancy": occupancy,
                         "store": store, "page_size": page_size, "host_mem": host_mem,
                         "pinned_mem": pinned_mem}
        _pager_options.check(self._options)
        self._settings = {"bits": self._bits or optim_bits,
                          "min_8bit_size": _pager_options.count(min_8bit_size, "min_8bit_size"),
                          "max_norm": float(max_norm), "decay_order": decay_order}
        self._start()
        super().__init__(params, defaults)

    def _start(self):
        self._turn = threading.RLock()
        self._engines = []
        self._slots = {}  # by id of the parameter, which its slot keeps alive
        self._kept = []   # of each group: which of its parameters were marked by keep_32bit

    # ------------------------------------------------------------- groups and their parameters --

    def add_param_group(self, param_group):
        """As torch's. Parameters that come after the first step get a pager of their own."""
        for key in {*self._options, *self._settings, "optim_bits", "is_paged"} - {"bits"}:
            if key in param_group:
                raise ValueError(f"{key} is said once, to the optimizer: it cannot differ by group")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
        except Exception:
            self.param_groups.pop()
            raise
        # By place: FSDP2 and accelerate put other Parameter objects into the same places later.
        self._kept.append([getattr(p, "_spw_state_bits", None) for p in group["params"]])
        if any(p.is_cuda for p in group["params"]):
            memory.hook_torch()

    def _check_group(self, group):
        self._group_fields(group)
        for key in ("amsgrad", "maximize"):
            if group.get(key):
                raise ValueError(f"{key} is not supported: leave it out of the group")
        for param in group["params"]:
            if param.dtype not in _engine.TYPES:
                raise TypeError(f"a parameter of {param.dtype}: float32, bfloat16 and float16 are "
                                "known")

    def _bits_of(self, param, group, place):
        kept = self._kept[group][place:place + 1] if group < len(self._kept) else []
        mark = getattr(param, "_spw_state_bits", None) or (kept and kept[0])
        if mark:
            return mark
        small = param.numel() < self._settings["min_8bit_size"]
        return 32 if small else self._settings["bits"]

    def _bind(self):
        """Gives each parameter that has no place yet one: a new engine for each device."""
        members, names = {}, self._names()
        for number, group in enumerate(self.param_groups):
            for place, param in enumerate(group["params"]):
                if self._slot(param) is None:
                    bits = self._bits_of(param, number, place)
                    where = _engine.local(param).device
                    name = names[id(param)]
                    members.setdefault(where, []).append((param, number, bits, name))
        fields = {n: self._group_fields(group) for n, group in enumerate(self.param_groups)}
        for where, list_of in members.items():
            engine = _engine.Engine(where, _pager_options.fields(self._options), self._rule,
                                    self._turn)
            slots = [engine.add(param, bits, number, fields[number], name)
                     for param, number, bits, name in list_of]
            self._engines.append(engine)
            self._slots.update((id(slot.param), slot) for slot in slots)

    def _names(self):
        """By id of each parameter: its name where the optimizer was made from named_parameters()
        (torch keeps them in param_names), else its number, as state_dict has it."""
        names = {}
        for group in self.param_groups:
            given = group.get("param_names") or [None] * len(group["params"])
            for param, name in zip(group["params"], given):
                names.setdefault(id(param), str(len(names)) if name is None else name)
        return names

    def _slot(self, param):
        slot = self._slots.get(id(param))
        return slot if slot is not None and slot.param is param else None

    def _touch(self, slot):
        slot.touched = True
        self.state[slot.param] = ParamState(slot)

    def _has_state(self, slot):
        there = self.state.get(slot.param)
        return type(there) is ParamState and there._slot is slot

    def _follow_state(self, slot):
        """Takes what the user did to optimizer.state: what was taken out begins anew, what was put
        there (another parameter's state, any layout that load_state_dict takes) goes on."""
        given = self.state.get(slot.param)
        if given:
            slot.fill(_state.parse(given, slot.n, "optimizer.state[p]", self._rule))
        elif slot.touched:
            slot.clear()
        self._touch(slot)

    # ------------------------------------------------------------------------------- the step --

    @_no_dynamo
    @torch.no_grad()
    def step(self, closure=None):
        """One step over the parameters whose grad is not None. Returns what the closure returned,
        which is called first, with gradients enabled. RuntimeError for a sparse gradient, TypeError
        for one of an unknown type, spillway.Error for what the library says; then no parameter was
        changed, save where spillway.h says otherwise (SPW_EIO)."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._turn:
            copied = self._place()
            self._run(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
            for param, work in copied:
                _engine.local(param).copy_(work)
        for engine in self._engines:
            memory.after_step(engine)
        return loss

    def _place(self):
        """Tells the engines where all is now; [(parameter, its contiguous copy)] to copy back."""
        if any(self._slot(p) is None for group in self.param_groups for p in group["params"]):
            self._bind()
        for engine in self._engines:
            engine.begin()
        copied, slots = [], self._slots
        for number, group in enumerate(self.param_groups):
            fields = self._group_fields(group)
            for engine in self._engines:
                engine.set_group(number, fields)
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                slot = slots[id(param)]
                if slot.group != number:
                    slot.engine.move(slot, number, fields)
                if not self._has_state(slot):
                    self._follow_state(slot)
                work = slot.engine.place(slot, param, grad)
                if work is not None:
                    copied.append((param, work))
        return copied

    def _run(self, loss_scale, found_inf):
        max_norm, clip = self._settings["max_norm"], 1.0
        if max_norm and (len(self._engines) > 1 or self._is_spread()):
            clip = self._clip_on_host(max_norm, loss_scale)
            max_norm = 0.0
            if clip is None:
                return
        for engine in self._engines:
            told = [None if value is None else value.detach().to(engine.where, torch.float32)
                    for value in (loss_scale, found_inf)]
            engine.step(max_norm, clip, *told)

    def _is_spread(self):
        """Whether some parameter is a shard of a tensor that other processes hold more of."""
        spread = [slot.param for slot in self._slots.values()
                  if slot.sharded and slot.param.device_mesh.size() > 1]
        if spread:
            raise ValueError("max_norm: of sharded parameters this process knows only its shards' "
                             "norm: use torch.nn.utils.clip_grad_norm_ instead")
        return False

    def _clip_on_host(self, max_norm, loss_scale):
        """The factor for gradients on several devices; None where the norm is not finite, and the
        step is to be skipped."""
        norm = math.sqrt(math.fsum(engine.norm() ** 2 for engine in self._engines))
        if loss_scale is not None:
            norm /= float(loss_scale)
        return min(1.0, max_norm / (norm + 1e-6)) if math.isfinite(norm) else None

    def pager_stats(self):
        """The fields of spw_pager_stats, a dict for each pager, with its device; [] before the
        first step."""
        return [{"device": str(engine.where), **engine.pager.stats()} for engine in self._engines]

    # -------------------------------------------------------------------- out and in again --

    def state_dict(self):
        """bitsandbytes' layout with plain CPU tensors: step (an int), and NESTED in a dict of their
        own state1, state2 and for 8-bit state qmap1, qmap2, absmax1, absmax2. DTensor parameters
        have them flat and as DTensors on the CPU, for torch.distributed.checkpoint. Copied out page
        by page: no more state is on the device than before. Parameters that never had a gradient
        are left out."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        numbers, groups = {}, []
        for group in self.param_groups:
            for param in group["params"]:
                numbers.setdefault(id(param), len(numbers))
            groups.append({**{key: value for key, value in group.items() if key != "params"},
                           "params": [numbers[id(param)] for param in group["params"]]})
        state = {}
        for group in self.param_groups:
            for param in group["params"]:
                slot = self._slot(param)
                if slot is not None and self._has_state(slot):
                    state[numbers[id(param)]] = _entry(slot, param)
        result = {"state": state, "param_groups": groups}
        for hook in self._optimizer_state_dict_post_hooks.values():
            changed = hook(self, result)
            result = result if changed is None else changed
        return result

    def load_state_dict(self, state_dict):
        """Takes a state_dict of ours, of bitsandbytes' class for the same rule (nested or flat, blocks
        of 256 or 2048), or for Adam and AdamW of torch.optim's. State goes to the store, not to the device, and
        is made 8-bit or 32-bit as this optimizer keeps it. ValueError names the parameter that does
        not fit; then nothing is changed."""
        state_dict = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        groups = self._merged_groups(state_dict["param_groups"])
        saved = self._matched(state_dict)
        self._rebind(groups, saved)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def _merged_groups(self, saved):
        """Our groups with the saved ones' values."""
        ours = self.param_groups
        if [len(group["params"]) for group in ours] != [len(group["params"]) for group in saved]:
            raise ValueError(
                "loaded state dict has groups of "
                f"{[len(group['params']) for group in saved]} parameters, the optimizer has "
                f"{[len(group['params']) for group in ours]}")
        for key in ("amsgrad", "maximize"):
            if any(group.get(key) for group in saved):
                raise ValueError(f"the saved optimizer used {key}, which cannot be continued")
        merged = []
        for own, theirs in zip(ours, saved):
            values = copy.deepcopy({k: v for k, v in theirs.items() if k != "params"})
            for key in ("param_names",):
                if key in own:
                    values[key] = own[key]
            merged.append({**{k: own[k] for k in self.defaults}, **values,
                           "params": own["params"]})
            self._check_group(merged[-1])
        return merged

    def _matched(self, state_dict):
        """[(parameter, group, place, saved state)]; all is looked at before anything is changed."""
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        places = [(param, number, place) for number, group in enumerate(self.param_groups)
                  for place, param in enumerate(group["params"])]
        matched = []
        for key, (param, number, place) in zip(ids, places):
            entry = state_dict["state"].get(key)
            if entry:
                name = f"parameter {key}"
                _state.parse(_shards.own_part(entry, param), _engine.local(param).numel(), name,
                             self._rule)
                matched.append((param, entry))
        unknown = set(state_dict["state"]) - set(ids)
        if unknown:
            raise ValueError(f"loaded state dict has state for {sorted(map(str, unknown))}, which "
                             "no group names")
        return matched

    def _rebind(self, groups, saved):
        """New engines that hold the saved state; the old ones go only when those are whole. Nothing
        is bound where nothing was saved, so that a wrapper's round trip at the start is free."""
        old = self._engines, self._slots, self.param_groups
        self._engines, self._slots, self.param_groups = [], {}, groups
        try:
            if saved:
                self._bind()
            for param, entry in saved:
                slot = self._slot(param)
                slot.fill(_state.parse(_shards.own_part(entry, param), slot.n, "", self._rule))
        except BaseException:
            for engine in self._engines:
                engine.close()
            self._engines, self._slots, self.param_groups = old
            raise
        for engine in old[0]:
            engine.close()
        self.state.clear()
        for param, _ in saved:
            self._touch(self._slot(param))

    def save(self, path):
        """Writes the whole state to one safetensors file (docs/checkpoints.md), page by page from
        where it rests: a state_dict is a copy in RAM, this takes one page. Keys are the names of
        named_parameters() if the optimizer was made from those, else numbers. An older file stays
        until the new one is whole. Hyper-parameters are not in it. ValueError where state is on
        several devices or sharded."""
        with self._turn:
            self._only_engine("save").optim.save(path)

    @torch.no_grad()
    def load(self, path):
        """Reads what save wrote, or `spillway ckpt convert`, into an optimizer with parameters of
        the same names, sizes and bits of state, under any paging: state goes where it rests.
        spillway.Error for a damaged file, or one of other parameters; then nothing is changed."""
        with self._turn:
            self._only_engine("load").optim.load(path)
            for slot in list(self._slots.values()):
                if slot.step and not slot.touched:
                    self._touch(slot)

    def _only_engine(self, what):
        if any(self._slot(p) is None for group in self.param_groups for p in group["params"]):
            self._bind()
        if len(self._engines) != 1:
            raise ValueError(f"{what}: one file holds the state of one pager, this optimizer has "
                             f"{len(self._engines)} (several devices, or parameters that came "
                             "after the first step): use state_dict()")
        engine = self._engines[0]
        engine.check_process()
        if any(slot.sharded for slot in self._slots.values()):
            raise ValueError(f"{what}: sharded parameters: use torch.distributed.checkpoint")
        for number, group in enumerate(self.param_groups):
            engine.set_group(number, self._group_fields(group))
        return engine

    def __getstate__(self):
        state = [(slot.param, {key: value for key, value in ParamState(slot).items()})
                 for slot in self._slots.values() if self._has_state(slot)]
        return {"version": _VERSION, "defaults": self.defaults, "param_groups": self.param_groups,
                "options": self._options, "settings": self._settings, "kept": self._kept,
                "state": state}

    def __setstate__(self, saved):
        self._start()
        self._options, self._settings = saved["options"], saved["settings"]
        self._kept = saved["kept"]
        super().__setstate__({"defaults": saved["defaults"], "state": {},
                              "param_groups": saved["param_groups"]})
        self.state = defaultdict(dict)
        self._rebind(self.param_groups, saved["state"])

    def _group_fields(self, group):
        """A group's hyper-parameters as fields of spw_group; ValueError for one out of range."""
        for key in ("lr", "eps", "weight_decay"):
            if not isinstance(group[key], (numbers.Real, torch.Tensor)):
                raise ValueError(f"{key}={group[key]!r}: a number is needed")
        if not isinstance(group["betas"], (tuple, list)) or len(group["betas"]) != self._n_betas:
            raise ValueError(f"betas={group['betas']!r}: {_COUNTS[self._n_betas]} numbers are needed")
        if isinstance(group["lr"], torch.Tensor) and group["lr"].numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        lr, eps, decay = (float(group[key]) for key in ("lr", "eps", "weight_decay"))
        betas = [float(beta) for beta in group["betas"]]
        if not 0 <= lr < math.inf:
            raise ValueError(f"Invalid learning rate: {lr}")
        if not 0 <= eps < math.inf:
            raise ValueError(f"Invalid epsilon value: {eps}")
        for index, beta in enumerate(betas):
            if not 0 <= beta < 1:
                raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
        if not 0 <= decay < math.inf:
            raise ValueError(f"Invalid weight_decay value: {decay}")
        fields = {f"beta{i}": beta for i, beta in enumerate(betas, 1)}
        return {"lr_scale": lr, "eps": eps, "weight_decay": decay, **fields,
                "decay": int(self._settings["decay_order"] == "after")}


class _Adam(Optimizer):
    """Arguments as bitsandbytes':

    params        iterable of parameters, or of dicts that are groups
    lr            a float, or a tensor of one element (read at every step)
    betas, eps    as Adam's
    weight_decay  decoupled; None: 0 for Adam*, 1e-2 for AdamW*
    amsgrad       not supported: anything but False is a ValueError
    """

    _decay = 0.0

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=None,
                 amsgrad=False, optim_bits=32, args=None, min_8bit_size=4096, is_paged=False,
                 **options):
        if amsgrad:
            raise ValueError("amsgrad is not supported: leave it out")
        decay = self._decay if weight_decay is None else weight_decay
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": decay},
                         optim_bits, args, min_8bit_size, is_paged, **options)


def _entry(slot, param):
    """A parameter's state as state_dict has it."""
    parts = {name: slot.read(name) for name in slot.parts()}
    if slot.sharded:
        return _shards.entry(slot, param, parts)
    return _state.entry(slot.step, parts, param.shape)


class Adam(_Adam):
    pass


class Adam8bit(Adam):
    _bits = 8


class Adam32bit(Adam):
    _bits = 32


class AdamW(_Adam):
    _decay = 1e-2


class AdamW8bit(AdamW):
    _bits = 8


class AdamW32bit(AdamW):
    _bits = 32


class PagedAdam(Adam):
    _paged = True


class PagedAdam8bit(Adam8bit):
    _paged = True


class PagedAdam32bit(Adam32bit):
    _paged = True


class PagedAdamW(AdamW):
    _paged = True


class PagedAdamW8bit(AdamW8bit):
    _paged = True


class PagedAdamW32bit(AdamW32bit):
    _paged = True


def __getattr__(name):
    """Lion's and AdEMAMix's classes, as bitsandbytes.optim has them too."""
    from . import ademamix, lion
    for module in (lion, ademamix):
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
