"""Fine-tuning on a card that is nearly full, with rows that are sometimes long: who survives.

Usage: python3 bench/gpu_spikes.py [--cases 8b-24,70b-48] [--steps 20] [--minutes 5]
                                   [--occupancy 0.90] [--bitsandbytes FOLDER | --no-peers] [--quick]

Ballast by plain cudaMalloc makes the GPU look like a 24 GB card (23.4 GiB usable, the context
included) or a 48 GB one (47.4 GiB). On it an NF4 model (gpu_model.py) with fp32 LoRA adapters
takes rows of 512 tokens, and a long one at two known steps. A first process finds by bisection the
longest row that fits without any optimizer state, and with all of it on the card; the long ones
are between, --place of the way up. Then each optimizer runs in a process of its own: torch's AdamW
(fused), bitsandbytes' AdamW 32-bit, ours. Ours has the occupancy that --occupancy of the small
card would be; but the library keeps a fiftieth of the whole GPU free in any case (2.8 GiB of an
H200's), more than it would of a small card. Reported: the step that killed it; tokens a second of
quiet steps; each long step's time beside that of its forward and backward alone; the steps until
as much state is resident as before. --quick: a tiny shape on a pretended card, also without a GPU.
"""
import argparse
import collections
import contextlib
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time

import gpu_step
import rows

sys.path.insert(0, os.path.join(rows.ROOT, "python"))

GIB = 1 << 30
Case = collections.namedtuple("Case", "name shape rank usable quiet grain most")
CASES = {case.name: case for case in (
    Case("8b-24", "8b", 256, int(23.4 * GIB), 512, 512, 32768),
    Case("32b-24", "32b", 64, int(23.4 * GIB), 512, 256, 32768),
    Case("70b-48", "70b", 64, int(47.4 * GIB), 512, 128, 16384),
    Case("tiny", "tiny", 8, 0, 32, 8, 4096),
)}
SPIKES = (6, 13)
STATE_BYTES = 8  # a parameter: m and v in fp32
OURS = "spillway PagedAdamW32bit"
TORCH, BITSANDBYTES = "torch AdamW fused", "bitsandbytes AdamW32bit"
LEARNING = {"lr": 1e-4, "weight_decay": 0.0}


class Card:
    """The GPU, made small. Its memory is taken past anybody's hook, straight from the runtime."""

    def __init__(self, torch, usable):
        self.torch, self.held = torch, []
        self.cudart = ctypes.CDLL("libcudart.so.13")
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        free, self.total = torch.cuda.mem_get_info()
        self.usable = usable
        # What the context took is part of what a small card would have.
        self.take(self.total - usable)
        say({"ballast_gib": round((self.total - usable) / GIB, 2), "usable_gib": usable / GIB,
             "context_gib": round((self.total - free) / GIB, 2),
             "free_gib": round(torch.cuda.mem_get_info()[0] / GIB, 2)})

    def take(self, size):
        """Returns how many pieces were taken, for give()."""
        pieces = 0
        while size > 0:
            pointer, piece = ctypes.c_void_p(), min(size, GIB)
            code = self.cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(piece))
            if code:
                self.cudart.cudaGetLastError()  # else the next call of torch reports it
                self.give(pieces)
                raise self.torch.OutOfMemoryError(f"out of memory: cudaMalloc says {code}")
            self.held.append(pointer)
            size, pieces = size - piece, pieces + 1
        return pieces

    def give(self, pieces):
        for _ in range(pieces):
            self.cudart.cudaFree(self.held.pop())

    def check(self, n_tokens):
        """A GPU says itself when it is full."""

    def empty(self):
        gc.collect()
        self.torch.cuda.empty_cache()

    def wait(self):
        self.torch.cuda.synchronize()


class PretendedCard:
    """For --quick: a token takes 1 KiB, 64 KiB are free beside the state."""

    def __init__(self, torch, state):
        self.torch, self.total, self.usable = torch, 1, 1
        self.free = state + (64 << 10)

    def take(self, size):
        if size > self.free:
            raise self.torch.OutOfMemoryError("out of memory (pretended)")
        self.free -= size
        return size

    def give(self, size):
        self.free += size

    def check(self, n_tokens):
        if n_tokens << 10 > self.free:
            raise self.torch.OutOfMemoryError("out of memory (pretended)")

    def empty(self):
        gc.collect()

    def wait(self):
        pass


def say(record):
    """A line of a worker to the parent."""
    print(json.dumps(record), flush=True)


def is_out_of_memory(error):
    text = f"{type(error).__name__} {error}".lower()
    return any(word in text for word in ("out of memory", "outofmemory", "alloc_failed",
                                         "out of device memory", "enomem"))


class Setting:
    """Model, adapters and card of one worker."""

    def __init__(self, args):
        if args.bitsandbytes:
            sys.path.insert(0, args.bitsandbytes)
        import torch
        if args.worker == OURS:
            import spillway.optim  # before CUDA is used
        import gpu_model
        self.torch, self.model, self.case = torch, gpu_model, CASES[args.case]
        self.device = "cuda" if torch.cuda.is_available() and self.case.usable else "cpu"
        shape = gpu_model.SHAPES[self.case.shape]
        begin = time.perf_counter()
        if self.device == "cuda":
            self.card = Card(torch, self.case.usable)
        self.kernel = "torch" if args.no_peers else gpu_model.use_bitsandbytes(self.device)
        self.llama = gpu_model.Model(shape, self.device, progress=lambda text: say({"text": text}))
        self.adapters = gpu_model.make_adapters(shape, self.case.rank, self.device)
        self.params = gpu_model.parameters(self.adapters)
        self.state = STATE_BYTES * sum(p.numel() for p in self.params)
        if self.device == "cpu":
            self.card = PretendedCard(torch, self.state)
        self.card.wait()
        say({"built_s": round(time.perf_counter() - begin, 1), "kernel": self.kernel,
             "n_params": self.state // STATE_BYTES})

    def backward(self, n_tokens, seed):
        self.card.check(n_tokens)
        tokens = self.model.random_tokens(self.llama.shape, 1, n_tokens, self.device, seed)
        return self.llama.backward(tokens, self.adapters)

    def versions(self):
        """What the rows are of."""
        theirs = sys.modules.get("bitsandbytes")
        return (f"torch {self.torch.__version__}, bitsandbytes "
                f"{theirs.__version__ if theirs else 'not there'}, dequantisation by {self.kernel}")

    def forget(self):
        for p in self.params:
            p.grad = None


# ------------------------------------------------------------------------------------ lengths --


def time_if_fits(setting, n_tokens):
    """Milliseconds of forward and backward, or None: they do not fit."""
    try:
        setting.card.wait()
        begin = time.perf_counter()
        setting.backward(n_tokens, 5)
        setting.card.wait()
        ms = 1e3 * (time.perf_counter() - begin)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        ms = None
    setting.forget()
    setting.card.empty()
    say({"tokens": n_tokens, "ms": ms})
    return ms


def longest(setting, most):
    """The longest row that fits, in whole grains; 0 if not even a quiet one does."""
    grain = setting.case.grain
    fits, fails = 0, setting.case.quiet
    while fails <= most and time_if_fits(setting, fails):
        fits, fails = fails, 2 * fails
    fails = min(fails, most + grain)
    while fits and fails - fits > grain:
        middle = (fits + fails) // 2 // grain * grain
        if time_if_fits(setting, middle):
            fits = middle
        else:
            fails = middle
    return fits


def find_length(args):
    setting = Setting(args)
    case = setting.case
    time_if_fits(setting, case.quiet)  # loads kernels, makes workspaces
    without = longest(setting, case.most)
    within, taken = 0, None
    try:
        taken = setting.card.take(setting.state)
        within = longest(setting, without)
    except setting.torch.OutOfMemoryError:
        say({"text": "the state alone does not fit beside the model"})
    if taken:
        setting.card.give(taken)
    low = max(within, case.quiet)
    length = low + int(args.place * (without - low)) // 8 * 8
    times = [time_if_fits(setting, length) for _ in range(2)]
    quiet = [time_if_fits(setting, case.quiet) for _ in range(3)]
    say({"result": {"without": without, "within": within, "length": length, "ms": times[-1],
                    "quiet_ms": min(q for q in quiet if q) if any(quiet) else None,
                    "state": setting.state, "versions": setting.versions()}})


# --------------------------------------------------------------------------------------- runs --


def occupancy(card, share):
    """Of the whole GPU, so that as much stays free as 1 - share of the small card is."""
    return 1 - (1 - share) * card.usable / card.total


def make_optimizer(args, setting):
    torch, params = setting.torch, setting.params
    if args.worker == TORCH:
        return torch.optim.AdamW(params, fused=True, **LEARNING)
    if args.worker == BITSANDBYTES:
        import bitsandbytes
        return bitsandbytes.optim.AdamW32bit(params, **LEARNING)
    import spillway.optim
    ways = {"paging": "copy"} if setting.device == "cpu" else {
        "occupancy": occupancy(setting.card, args.occupancy)}
    return spillway.optim.PagedAdamW32bit(params, **LEARNING, **ways)


def pretend(setting, optimizer, is_long):
    """Without a GPU nothing makes state give way, and no peer's state takes room."""
    if setting.device != "cpu" or not optimizer.state:
        return
    if not hasattr(optimizer, "pager_stats"):
        if setting.card.free > setting.state:
            setting.card.take(setting.state)
    elif is_long:
        optimizer._engines[0].pager.reclaim(setting.state)


def pager_figures(optimizer):
    if not hasattr(optimizer, "pager_stats") or not optimizer.pager_stats():
        return {}
    stats = optimizer.pager_stats()[0]
    names = ("resident_bytes", "budget_bytes", "state_bytes", "reclaims", "bytes_reclaimed",
             "bytes_in", "bytes_out")
    return {name: stats[name] for name in names}


def one_step(args, setting, optimizer, step):
    case, is_long = setting.case, step in SPIKES
    n_tokens = args.length if is_long else case.quiet
    pretend(setting, optimizer, is_long)
    where = "forward and backward"
    setting.card.wait()
    begin = time.perf_counter()
    try:
        loss = setting.backward(n_tokens, 100 + step)
        setting.card.wait()
        middle = time.perf_counter()
        where = "optimizer"
        optimizer.step()
        setting.card.wait()
    except Exception as error:
        say({"died": step, "where": where, "tokens": n_tokens,
             "memory": is_out_of_memory(error), "error": str(error)[:300]})
        return False
    end = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    peak = setting.torch.cuda.max_memory_reserved() if setting.device == "cuda" else 0
    say({"step": step, "tokens": n_tokens, "ms": 1e3 * (end - begin),
         "optimizer_ms": 1e3 * (end - middle), "loss": float(loss), "reserved_peak": peak,
         **pager_figures(optimizer)})
    return True


def run_steps(args):
    setting = Setting(args)
    optimizer = make_optimizer(args, setting)
    for step in range(args.steps):
        if not one_step(args, setting, optimizer, step):
            break
    if args.worker == OURS:
        import spillway
        say({"text": spillway.memory_summary()})


# -------------------------------------------------------------------------------- the parent --


def work(args, case, worker, *options):
    """A worker's records; it is ended when the time is up."""
    command = [sys.executable, os.path.abspath(__file__), "--worker", worker, "--case", case.name,
               "--steps", str(args.steps), "--occupancy", str(args.occupancy),
               "--place", str(args.place), *options]
    command += ["--bitsandbytes", args.bitsandbytes] if args.bitsandbytes else []
    command += ["--no-peers"] if args.no_peers else []
    left = args.deadline - time.monotonic()
    print(f"== {case.name}: {worker} ({left:.0f} s left)", flush=True)
    if left < 5:
        return []
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(left, child.kill)
    timer.start()
    records = []
    for line in child.stdout:
        print("  " + line.rstrip()[:500], flush=True)
        if line.startswith("{"):
            records.append(json.loads(line))
    child.wait()
    timer.cancel()
    if child.returncode:
        print(f"  ended with {child.returncode}", flush=True)
    return records


def steps_of(records):
    return [r for r in records if "step" in r]


def digest(records, case):
    """What a run showed; None: it never came to a step."""
    steps = steps_of(records)
    died = next((r for r in records if "died" in r), None)
    if not steps and not died:
        return None
    # The steps just after a long one stream state back in: they count as its cost.
    quiet = [r for r in steps if r["step"] >= 2 and
             not any(0 <= r["step"] - spike <= 4 for spike in SPIKES)]
    ms = statistics.median(r["ms"] for r in quiet) if quiet else None
    result = {"n": len(steps), "died": died, "quiet_ms": ms, "n_quiet": len(quiet), "spikes": [],
              "quiet_optimizer": statistics.median(r["optimizer_ms"] for r in quiet)
              if quiet else None,
              "tokens_s": 1e3 * case.quiet / ms if ms else None}
    for spike in SPIKES:
        seen = next((r for r in steps if r["step"] == spike), None)
        if seen and ms:
            result["spikes"].append(digest_spike(steps, seen, ms))
    return result


def digest_spike(steps, seen, quiet_ms):
    """`back`: how many steps later one ended with as much resident as before; 0: this one did."""
    spike = seen["step"]
    before = next((r for r in steps if r["step"] == spike - 1), {})
    end = next((s for s in SPIKES if s > spike), len(steps))
    after = [r for r in steps if spike < r["step"] < end]
    back = next((r["step"] - spike for r in [seen, *after]
                 if r.get("resident_bytes", 0) >= before.get("resident_bytes", 0)), None)
    return {"ms": seen["ms"], "optimizer_ms": seen["optimizer_ms"], "back": back,
            "resident_before": before.get("resident_bytes"),
            "resident_after": seen.get("resident_bytes"),
            "reclaimed": seen.get("bytes_reclaimed", 0) - before.get("bytes_reclaimed", 0),
            "later_ms": sum(r["ms"] - quiet_ms for r in after if r["step"] <= spike + 4)}


def end_text(result, n_steps):
    if result is None:
        return "did not run"
    if result["died"]:
        died = result["died"]
        cause = "out of memory" if died["memory"] else died["error"]
        return f"dies at step {died['died']} ({died['tokens']} tokens) in {died['where']}: {cause}"
    return f"survives {result['n']} of {n_steps} steps"


def spike_text(spike, plain_ms):
    gib = lambda n: f"{(n or 0) / GIB:.2f}"
    return (f"{spike['ms']:.0f} ms, its forward and backward alone {plain_ms:.0f}, optimizer "
            f"{spike['optimizer_ms']:.1f}; {gib(spike['reclaimed'])} GiB given back; resident "
            f"{gib(spike['resident_before'])} GiB before, {gib(spike['resident_after'])} after the "
            f"step, back after {spike['back']} steps; the 4 steps after cost "
            f"{spike['later_ms']:.0f} ms more than quiet ones")


def config_of(case, name):
    return f"{name}, {case.shape} NF4 rank {case.rank}, {case.usable / GIB:.1f} GiB usable"


def survival_row(args, case, name, found, length, common):
    peer = found.get(TORCH) if name != TORCH else None
    result = found[name]
    what = (f"steps of {args.steps}; long rows of {length['length']} tokens at steps "
            f"{' and '.join(str(s) for s in SPIKES)}; {length['without']} fit without state, "
            f"{length['within']} with all {length['state'] / GIB:.2f} GiB of it; "
            f"{length['versions']}")
    return rows.row("spikes", f"{config_of(case, name)}, steps survived", result["n"], "steps",
                    limit_name="steps run", limit=args.steps, **common,
                    peer_name=TORCH if peer else "", peer=peer["n"] if peer else None,
                    goal="G6 survives what kills AdamW" if name == OURS else "",
                    note=f"{end_text(result, args.steps)}; {what}")


def quiet_row(case, name, found, length, common):
    result = found[name]
    others = [n for n in found if n != name and found[n] and found[n]["tokens_s"]]
    peer = max(others, key=lambda n: found[n]["tokens_s"], default=None) if name == OURS else None
    alone = length["quiet_ms"]
    return rows.row(
        "spikes", f"{config_of(case, name)}, quiet steps", result["tokens_s"], "tokens/s", **common,
        limit_name="forward and backward alone" if alone else "",
        limit=1e3 * case.quiet / alone if alone else None,
        peer_name=peer or "", peer=found[peer]["tokens_s"] if peer else None,
        note=f"median of {result['n_quiet']} steps of {case.quiet} tokens, "
             f"{result['quiet_ms']:.1f} ms, of it the optimizer {result['quiet_optimizer']:.2f}")


def spike_rows(case, name, result, length, common):
    for step, spike in zip(SPIKES, result["spikes"]):
        note = spike_text(spike, length["ms"])
        where = f"{config_of(case, name)}, {length['length']} tokens at step {step}"
        yield rows.row("spikes", where, spike["ms"], "ms",
                       limit_name="forward and backward alone", limit=length["ms"],
                       lower_is_better=True, note=note, **common)
        if name == OURS and spike["resident_before"]:
            yield rows.row("spikes", f"{where}, until the state is back", spike["back"], "steps",
                           note=note, **common)


def make_rows(args, case, found, length, common):
    for name, result in found.items():
        if result is None:
            continue
        yield survival_row(args, case, name, found, length, common)
        if result["tokens_s"]:
            yield quiet_row(case, name, found, length, common)
        if length["ms"]:
            yield from spike_rows(case, name, result, length, common)


def run_case(args, case, common):
    records = work(args, case, "length")
    length = next((r["result"] for r in records if "result" in r), None)
    if not length:
        return [f"{case.name}: no length was found"]
    lines = [f"{case.name} ({case.shape}, rank {case.rank}, {case.usable / GIB:.1f} GiB): "
             f"{length['without']} tokens fit without state, {length['within']} with it; long rows "
             f"of {length['length']}"]
    found = {}
    for name in (TORCH, OURS) if args.no_peers else (TORCH, BITSANDBYTES, OURS):
        found[name] = digest(work(args, case, name, "--length", str(length["length"])), case)
        result = found[name]
        lines.append(f"  {name}: {end_text(result, args.steps)}")
        if result and result["tokens_s"]:
            lines.append(f"    quiet: {result['tokens_s']:.0f} tokens/s, optimizer "
                         f"{result['quiet_optimizer']:.2f} of {result['quiet_ms']:.1f} ms")
        for spike in result["spikes"] if result and length["ms"] else ():
            lines.append("    long: " + spike_text(spike, length["ms"]))
    made = list(make_rows(args, case, found, length, common))
    with contextlib.redirect_stdout(None):  # the summary says it in fewer words
        rows.append(args.results, made)
    return lines


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="8b-24,70b-48")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--place", type=float, default=0.6,
                        help="of the long rows between what fits with state and without")
    parser.add_argument("--occupancy", type=float, default=0.90, help="ours, of the small card")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--bitsandbytes", help="folder that holds the package")
    parser.add_argument("--no-peers", action="store_true", help="without bitsandbytes")
    parser.add_argument("--results", default="h200-spikes.csv")
    parser.add_argument("--quick", action="store_true", help="a tiny shape; no rows are kept")
    for hidden in ("--worker", "--case"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.deadline = time.monotonic() + 60 * args.minutes
    if args.quick:
        args.cases, args.results = "tiny", os.devnull
    return args


def main():
    args = arguments()
    if args.worker:
        return find_length(args) if args.worker == "length" else run_steps(args)
    begin, lines = time.monotonic(), []
    names = args.cases.split(",")
    common = {"gpu": "none" if args.quick else gpu_step.gpu_name()}
    end = args.deadline
    for number, name in enumerate(names):
        now = time.monotonic()
        # The larger models come later and need more: an early case may not take all.
        args.deadline = now + (end - now) * (0.5 if number + 1 < len(names) else 1.0)
        lines += run_case(args, CASES[name], common)
    print("\n".join(lines))
    print(f"{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
