"""The parameters of one optimizer that live on one device: their pager, and the step over them.

What it is not: it knows no param_groups' life, no state_dict and no hooks; optim.py has those. An
engine's parameters are fixed when it is made; what comes later gets another engine. `turn`, a lock of
its optimizer, lets one thread at a time step, or reach the state (a thread that saves while another
trains); on CUDA everything is queued on the thread's current stream.
"""
import os
import weakref

import torch

from . import _lib, _state

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_ENOMEM = -2

live = weakref.WeakSet()  # the engines of this process
reserved = {}             # by torch.device: what memory.reserve said last, for engines to come
_devices = {}             # by name; a device lives as long as the process
if hasattr(os, "register_at_fork"):
    # The threads of a device do not survive a fork: the child opens its own.
    os.register_at_fork(after_in_child=_devices.clear)


def device_of(where):
    """The library's device for a torch.device."""
    if where.type not in ("cpu", "cuda"):
        raise TypeError(f"parameters on {where}: Spillway knows cpu and cuda")
    name = "cpu" if where.type == "cpu" else f"cuda:{where.index or 0}"
    if name not in _devices:
        threads = torch.get_num_threads() if name == "cpu" else 0
        _devices[name] = _lib.Device(name, threads=threads)
    return _devices[name]


def is_sharded(tensor):
    """Whether it is a DTensor; asked without importing torch.distributed."""
    return hasattr(tensor, "to_local")


def local(tensor):
    """What of a tensor lies here: a DTensor's shard, else the tensor itself."""
    if not is_sharded(tensor):
        return tensor
    shard = tensor.to_local()
    return shard.wait() if hasattr(shard, "wait") else shard


def _destroy(optim, pager, process):
    # A forked child shares the parent's files and rings and has none of its threads: hands off.
    if process == os.getpid():
        optim.close()
        pager.close()


class Slot:
    """A parameter's place in an engine."""

    __slots__ = ("engine", "index", "param", "bits", "n", "dtype", "group", "sharded", "touched",
                 "empty_steps")

    def __init__(self, engine, index, param, bits, group):
        self.engine, self.index, self.param, self.bits = engine, index, param, bits
        self.n = local(param).numel()
        self.dtype = param.dtype
        self.sharded = is_sharded(param)
        self.group = group        # its group among the optimizer's, as the library was told
        self.touched = False      # its state is not all zero, or may not be
        self.empty_steps = 0      # steps of an empty shard, which the library does not count

    @property
    def step(self):
        with self.engine.turn:
            return self.engine.optim.get_step(self.index) if self.n else self.empty_steps

    @step.setter
    def step(self, value):
        self.empty_steps = value
        if self.n:
            with self.engine.turn:
                self.engine.optim.set_step(self.index, value)

    def parts(self):
        """The names of the parts of its state."""
        moments = _state.MOMENTS[self.engine.rule]
        return moments + tuple("absmax_" + m for m in moments) if self.bits == 8 else moments

    def read(self, name):
        """A part, copied out page by page: a CPU tensor, flat."""
        self.engine.check_process()
        size = self.engine.optim.part_bytes(self.index, name)
        codes = self.bits == 8 and not name.startswith("absmax")
        part = torch.empty(size if codes else size // 4,
                           dtype=torch.uint8 if codes else torch.float32)
        with self.engine.turn:
            self.engine.optim.read_part(self.index, name, part.data_ptr(), size)
        return part

    def write(self, name, part):
        """The other way, from a CPU tensor of that size and type."""
        self.engine.check_process()
        part = part.contiguous()
        with self.engine.turn:
            self.engine.optim.write_part(self.index, name, part.data_ptr(),
                                         part.numel() * part.element_size())

    def fill(self, moments):
        """Takes the state that _state.parse returned."""
        for name, part in _state.as_bits(moments, self.bits).items():
            self.write(name, part)
        self.step = moments.step

    def clear(self):
        """As before its first step."""
        for name in self.parts():
            self.write(name, torch.zeros_like(self.read(name)))
        self.step = 0


class Engine:
    """`pager_options`: fields of spw_pager_config. It does not know its slots, which know it:
    without a cycle its memory is free as soon as the optimizer is. `rule`: one of _state.MOMENTS.
    `turn`: a lock of all who use the optimizer."""

    def __init__(self, where, pager_options, rule, turn):
        self.turn = turn
        self.where = where
        self.rule = rule
        self.is_cuda = where.type == "cuda"
        self.process = os.getpid()
        self.pager = _lib.Pager(device_of(where), **pager_options)
        try:
            self.optim = _lib.Optim(self.pager, rule=rule)
        except Exception:
            self.pager.close()
            raise
        self._close = weakref.finalize(self, _destroy, self.optim, self.pager, self.process)
        self._close.atexit = False  # the process ends; the driver may be gone already
        self.groups = {}            # the optimizer's number of a group: the library's
        self._group_now = {}        # the library's: what it was told last
        # Three words a parameter, as spw_place has them: data, gradient, the gradient's type.
        self._idle, self.now = [], []
        self._told = None  # what the library was told last
        self.held = []     # copies that the step under way reads
        if where in reserved:
            self.pager.reserve(reserved[where])
        live.add(self)

    def _group(self, number, options):
        """The library's number of a group, which is made if need be."""
        if number not in self.groups:
            self.groups[number] = self.optim.add_group(**options)
        return self.groups[number]

    def add(self, param, bits, group, options, name):
        """The slot of a new parameter, whose group has these hyper-parameters (spw_group)."""
        number = self._group(group, options)
        shard = local(param).detach()
        index = self.optim.add_at(shard.data_ptr(), shard.numel(), TYPES[shard.dtype],
                                  group=number, bits=bits, name=name)
        self._idle += [shard.data_ptr(), 0, 0]
        return Slot(self, index, param, bits, group)

    def close(self):
        live.discard(self)
        self._close()

    # ------------------------------------------------------------------------------- a step --

    def set_group(self, group, options):
        """The hyper-parameters of one of the optimizer's groups, if it has or had members here."""
        number = self.groups.get(group)
        if number is not None and self._group_now.get(number) != options:
            self.optim.set_group(number, **options)
            self._group_now[number] = options

    def move(self, slot, group, options):
        """A parameter is in another group of the optimizer now, or its group has another number."""
        self.optim.set_param_group(slot.index, self._group(group, options))
        slot.group = group

    def check_process(self):
        if self.process != os.getpid():
            raise RuntimeError("this optimizer was stepped before a fork: make it in the process "
                               "that steps it, and take its state_dict() there")

    def begin(self):
        self.check_process()
        self.now = list(self._idle)
        self.held = []

    def place(self, slot, param, grad):
        """Where a parameter and its gradient are in this step. Returns a contiguous copy of the
        parameter that is to be copied back after the step, or None: it is updated in place."""
        if slot.sharded:
            param, grad = local(param), local(grad)
        if grad.dtype not in TYPES or grad.layout is not torch.strided:
            raise _refused(grad)
        if param.dtype is not slot.dtype or param.numel() != slot.n or \
                param.device != self.where or grad.device != self.where:
            raise _changed(slot, param, grad, self.where)
        if not slot.n:
            slot.empty_steps += 1
            return None
        work = None
        if not grad.is_contiguous():
            grad = grad.contiguous()
            self.held.append(grad)
        if not param.is_contiguous():
            param = work = param.detach().contiguous()
            self.held.append(work)
        at = 3 * slot.index
        self.now[at:at + 3] = param.data_ptr(), grad.data_ptr(), TYPES[grad.dtype]
        return work

    def _tell(self):
        if self.now != self._told:
            self.optim.set_place_words(self.now)
            self._told = self.now

    def step(self, max_norm, grad_scale, loss_scale, found_inf):
        """Queues the step over what `place` was told; lr is in the groups. The last two: tensors of
        one float on this device, or None."""
        self._tell()
        stream = torch.cuda.current_stream(self.where).cuda_stream if self.is_cuda else None
        self.held += [loss_scale, found_inf]
        addresses = [None if value is None else value.data_ptr()
                     for value in (loss_scale, found_inf)]
        try:
            self.optim.step(1.0, max_norm, grad_scale, stream, *addresses)
        except _lib.Error as error:
            # Before the first step nothing was changed: what torch's cache holds may do.
            if error.code != _ENOMEM or not self.is_cuda:
                raise
            torch.cuda.empty_cache()
            self.optim.step(1.0, max_norm, grad_scale, stream, *addresses)
        # Queued on the stream that will use their memory next, as the gradients themselves are.
        self.held = []

    def norm(self):
        """The norm of the gradients that `place` was told; waits for them."""
        if self.is_cuda:
            torch.cuda.current_stream(self.where).synchronize()
        self._tell()
        return self.optim.grad_norm()


def _refused(grad):
    if grad.layout is not torch.strided:
        return RuntimeError("Spillway does not support sparse gradients: make the embedding with "
                            "sparse=False")
    return TypeError(f"a gradient of {grad.dtype}: float32, bfloat16 and float16 are known")


def _changed(slot, param, grad, where):
    return RuntimeError(
        f"a parameter had {slot.n} elements of {slot.dtype} on {where} when its state was made; it "
        f"has {param.numel()} of {param.dtype} on {param.device} now, its gradient is on "
        f"{grad.device}: take optimizer.state_dict() before such a change, then make a new "
        "optimizer and load it")
