"""Memory that torch and the pagers share: the hook under torch's allocator, torch's cache given back
after a spike, and what the user may ask and say about it."""
import os
import time
import warnings
from collections import namedtuple

import torch

from . import _engine, _lib

_EXPANDABLE, _PRELOADED = 2, 4
_QUIET = 2         # steps without a reclaim before the cache is looked at
_SLOWEST = 128     # steps between two tries when giving back did not help
_SLAB = 64 << 20   # less than a slab is not worth it
_reached = None    # what the hook reached; None: not tried


class _Given:
    """Of one engine: when torch's cache was given back for it, and what came of it."""

    def __init__(self):
        self.quiet, self.reclaims = 0, 0
        self.interval, self.wait = 1, 0
        self.before = None  # (resident then, bytes that were given) of the last try
        self.n, self.bytes, self.ms = 0, 0, 0.0


Cache = namedtuple("Cache", "n bytes ms")


def hook_torch():
    """Puts state under torch's CUDA allocator, once a process: when it runs out, pages give way.
    SPILLWAY_NO_HOOK=1 leaves it alone."""
    global _reached
    if _reached is not None or os.environ.get("SPILLWAY_NO_HOOK"):
        return
    _reached = _lib.install_hook()
    settings = os.environ.get("PYTORCH_ALLOC_CONF", "") + os.environ.get(
        "PYTORCH_CUDA_ALLOC_CONF", "")
    expandable = "expandable_segments:true" in settings.lower().replace(" ", "")
    if not _reached:
        warnings.warn("Spillway's hook is not under torch's allocator: a surge of other memory "
                      "will not make state give way. " + (_lib.hook_path() or
                      "libspillway_hook.so is not beside the package"), stacklevel=4)
    elif expandable and not _reached & (_EXPANDABLE | _PRELOADED):
        warnings.warn("expandable segments were in use before Spillway's hook came: a surge will "
                      "not make state give way. Start the program with spillway-run, or import "
                      "spillway.optim before CUDA is used", stacklevel=4)


def hook_early():
    """As hook_torch, when the optimizers are imported: expandable segments look the driver up once,
    at torch's first CUDA call. Touches no GPU, and says nothing."""
    if torch.version.cuda and _lib.hook_path() and not os.environ.get("SPILLWAY_NO_HOOK"):
        _lib.install_hook()


def after_step(engine):
    """Torch's cache keeps what a spike took, so state could not come back. When pages are out and the
    cache would hold them, and no reclaim came for some steps, it is given back; less and less often
    if the resident set does not grow for it."""
    if not engine.is_cuda:
        return
    given = engine.given = getattr(engine, "given", None) or _Given()
    stats = engine.pager.stats()
    out = stats["state_bytes"] - stats["resident_bytes"]
    given.quiet = given.quiet + 1 if stats["reclaims"] == given.reclaims else 0
    given.reclaims = stats["reclaims"]
    if out < stats["page_bytes"] or stats["paging"] != _lib.PAGING["copy"]:
        given.interval, given.wait = 1, 0
        return
    given.wait -= 1
    if given.quiet < _QUIET or given.wait > 0:
        return
    _weigh(given, stats["resident_bytes"])
    if given.wait > 0:
        return
    cached = torch.cuda.memory_reserved(engine.where) - torch.cuda.memory_allocated(engine.where)
    if cached < min(out, _SLAB):
        return
    begin = time.perf_counter()
    torch.cuda.empty_cache()
    given.ms += 1e3 * (time.perf_counter() - begin)
    given.n += 1
    given.bytes += cached
    given.before = (stats["resident_bytes"], cached)
    given.wait = _QUIET  # the next step shows what came of it


def _weigh(given, resident):
    if given.before is None:
        return
    before, cached = given.before
    given.before = None
    if resident - before >= cached // 8:
        given.interval = 1
    else:
        given.interval = min(2 * given.interval, _SLOWEST)
        given.wait = given.interval


def cache_given(engine):
    """How often torch's cache was given back for an engine, the bytes, and the milliseconds."""
    given = getattr(engine, "given", None) or _Given()
    return Cache(given.n, given.bytes, given.ms)


def reserve(size, device=None):
    """Says that `size` (bytes, or "2GiB") beyond what is in use on a device now (default: the
    current CUDA device, the CPU where there is none) will be needed: state gives way now, and keeps
    away until the next call, that of optimizers made later too. 0 takes the word back."""
    from . import _pager_options
    size = _pager_options.size(size, "size")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type not in ("cpu", "cuda"):
        raise ValueError(f"device={str(where)!r}: Spillway knows cpu and cuda")
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    _engine.reserved[where] = size
    for engine in list(_engine.live):
        if engine.where == where:
            engine.pager.reserve(size)


def _text(size):
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


def memory_summary():
    """Where the state of this process's optimizers is, as lines of text to print."""
    lines = []
    for engine in sorted(_engine.live, key=lambda one: str(one.where)):
        s, cache = engine.pager.stats(), cache_given(engine)
        way = next(name for name, number in _lib.PAGING.items() if number == s["paging"])
        lines += [
            f"{engine.where}: state {_text(s['state_bytes'])} in {s['n_pages']} pages of "
            f"{_text(s['page_bytes'])}, paging {way}",
            f"  on the device   {_text(s['resident_bytes'])} resident, budget "
            f"{_text(min(s['budget_bytes'], s['state_bytes']))}, ring {_text(s['ring_bytes'])}",
            f"  in RAM          {_text(s['host_bytes'])}, of it pinned "
            f"{_text(s['pinned_bytes'])}",
            f"  moved           {_text(s['bytes_in'])} in, {_text(s['bytes_out'])} out in "
            f"{s['steps']} steps",
            f"  given back      {_text(s['bytes_reclaimed'])} in {s['reclaims']} reclaims; torch's "
            f"cache {cache.n} times, {_text(cache.bytes)} in {cache.ms:.1f} ms"]
    return "\n".join(lines) if lines else "no optimizer of Spillway has state yet"


hook_early()
