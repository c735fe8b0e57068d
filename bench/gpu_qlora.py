"""The optimizer's share of a QLoRA step on a GPU: bitsandbytes', torch's and ours in one run.

Usage: python3 bench/gpu_qlora.py [--ranks 16,64] [--steps 50] [--full 14] [--minutes 4]
                                  [--batch 2] [--seq 2048] [--no-checkpointing] [--raw FILE]
                                  [--bitsandbytes FOLDER | --no-peers] [--control] [--quick]

One random NF4 8B (gpu_model.py); each optimizer has its own copy of the same adapters. In step s
all of them, in rotating order, take the same tokens: so the card's clock and heat are the same for
all, and the losses form curves that can be compared. The first --full steps have batch x seq
tokens and are timed, all but two; the others, 1 x 512, continue the curves. Every other timed step
waits for the backward pass before optimizer.step(), which then is timed alone, by events and by
the host's clock; the rest run freely and give the tokens a second. Medians. --control adds a
second torch AdamW: its distance from the first is what the attention kernel's atomics alone do to
a curve. bitsandbytes' paged state stays under 1.75 GiB and is freed after each rank. --quick: a
tiny shape, also without a GPU.
"""
import argparse
import contextlib
import ctypes
import gc
import json
import os
import statistics
import sys
import time

import gpu_step
import rows

sys.path.insert(0, os.path.join(rows.ROOT, "python"))

WARM = 2
SHORT = (1, 512)
LEARNING = {"lr": 2e-4, "weight_decay": 0.0}
MOST_MANAGED = 7 << 28
REFERENCE, CONTROL = "torch AdamW fused", "torch AdamW fused again"
OURS = {"spillway PagedAdamW8bit": "PagedAdamW8bit", "spillway PagedAdamW32bit": "PagedAdamW32bit"}
# bitsandbytes' classes, and the bytes of managed memory that each takes a parameter.
THEIRS = {"bitsandbytes AdamW8bit": ("AdamW8bit", 0),
          "bitsandbytes PagedAdamW8bit": ("PagedAdamW8bit", 2),
          "bitsandbytes PagedAdamW32bit": ("PagedAdamW32bit", 8)}
# Which of theirs keeps the same state as each of ours.
LIKE = {"spillway PagedAdamW8bit": "bitsandbytes PagedAdamW8bit",
        "spillway PagedAdamW32bit": "bitsandbytes PagedAdamW32bit"}


def say(text):
    print(text, file=sys.stderr, flush=True)


class Clock:
    """Device time by events where there is a device, else the host's."""

    def __init__(self, torch, device):
        self.torch, self.cuda = torch, device == "cuda"

    def wait(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def mark(self):
        if not self.cuda:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin, end):
        return begin.elapsed_time(end) if self.cuda else 1e3 * (end - begin)


class Runner:
    """An optimizer, its adapters, and what was measured of it."""

    def __init__(self, name, make, adapters, model):
        self.name, self.adapters = name, adapters
        self.optimizer = make(model.parameters(adapters))
        self.losses, self.step_ms, self.device_ms, self.host_ms = [], [], [], []

    def step(self, llama, tokens, clock, alone):
        """One step; `alone`: the optimizer's part is timed, else the whole, None: nothing is."""
        clock.wait()
        begin = time.perf_counter()
        loss = llama.backward(tokens, self.adapters, self.checkpointing)
        if alone:
            clock.wait()
        before, host = clock.mark(), time.perf_counter()
        self.optimizer.step()
        after = clock.mark()
        clock.wait()
        end = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        if alone:
            self.device_ms.append(clock.between(before, after))
            self.host_ms.append(1e3 * (end - host))
        elif alone is not None:
            self.step_ms.append(1e3 * (end - begin))
        self.losses.append(float(loss))


def makers(torch, bnb, n_params, device, control):
    """{name: parameters -> optimizer}, those that may run here."""
    import spillway.optim
    adamw = lambda p: torch.optim.AdamW(p, fused=True, **LEARNING)
    made = {REFERENCE: adamw}
    if control:
        made[CONTROL] = adamw
    managed = 0
    for name, (cls, size) in THEIRS.items() if bnb else ():
        if device == "cuda" and managed + size * n_params > MOST_MANAGED:
            say(f"{name} left out: with it {managed + size * n_params} bytes would be managed")
            continue
        managed += size * n_params
        made[name] = lambda p, cls=cls: getattr(bnb.optim, cls)(p, **LEARNING)
    for name, cls in OURS.items():
        made[name] = lambda p, cls=cls: getattr(spillway.optim, cls)(p, **LEARNING)
    return made


def free_managed(torch, bnb, runners):
    """bitsandbytes never frees managed memory. Its tensors are views of it: gone after this."""
    manager = bnb.functional.GlobalPageManager.get_instance()
    pointers = {t.data_ptr() for t in manager.paged_tensors if getattr(t, "is_paged", False)}
    manager.paged_tensors.clear()
    for runner in runners:
        runner.optimizer.state.clear()
    gc.collect()
    if pointers:
        torch.cuda.synchronize()
        cudart = ctypes.CDLL("libcudart.so.13")
        codes = {cudart.cudaFree(ctypes.c_void_p(pointer)) for pointer in pointers}
        say(f"{len(pointers)} managed allocations freed, codes {sorted(codes)}")


def curves(args, torch, llama, runners, model, deadline):
    """All steps of all runners; how many were of full size."""
    clock, full_until = Clock(torch, args.device), time.monotonic()
    full_until += 0.75 * (deadline - full_until)
    n_full = 0
    for step in range(args.steps):
        full = step < args.full and (step < WARM + 2 or time.monotonic() < full_until)
        n_full += full
        if time.monotonic() > deadline:
            say(f"out of time after {step} steps")
            break
        batch, seq = (args.batch, args.seq) if full else args.short
        tokens = model.random_tokens(llama.shape, batch, seq, args.device, 1000 + step)
        alone = bool(step % 2) if full and step >= WARM else None
        at = step % len(runners)
        for runner in runners[at:] + runners[:at]:
            runner.step(llama, tokens, clock, alone)
        if step % 5 == 0 or step < WARM:
            say(f"step {step}: {batch} x {seq} tokens, losses " +
                " ".join(f"{r.losses[-1]:.5f}" for r in runners))
    return n_full


def summary(runner, reference, tokens):
    ms, alone = statistics.median(runner.step_ms), statistics.median(runner.device_ms)
    return {
        "name": runner.name, "step_ms": ms, "step_min": min(runner.step_ms),
        "step_max": max(runner.step_ms), "tokens_s": 1e3 * tokens / ms, "optimizer_ms": alone,
        "optimizer_min": min(runner.device_ms), "optimizer_max": max(runner.device_ms),
        "host_ms": statistics.median(runner.host_ms), "share": 100 * alone / ms,
        "n": len(runner.step_ms), "steps": len(runner.losses), "losses": runner.losses,
        "worst_loss": max(abs(a - b) for a, b in zip(runner.losses, reference.losses)),
        "last_loss": abs(runner.losses[-1] - reference.losses[-1]),
    }


def distance(a, b):
    return max(abs(x - y) for x, y in zip(a["losses"], b["losses"]))


def measure(args, torch, bnb, llama, model, rank, deadline):
    first = model.make_adapters(llama.shape, rank, args.device)
    n_params = sum(p.numel() for p in model.parameters(first))
    made = makers(torch, bnb, n_params, args.device, args.control)
    runners = [Runner(name, make, model.copy_adapters(first), model)
               for name, make in made.items()]
    for runner in runners:
        runner.checkpointing = args.checkpointing
    n_full = curves(args, torch, llama, runners, model, deadline)
    found = {r.name: summary(r, runners[0], args.batch * args.seq) for r in runners}
    if bnb:
        free_managed(torch, bnb, runners)
    return {"rank": rank, "n_params": n_params, "full": n_full, "found": found}


def table(result):
    print(f"rank {result['rank']}, {result['n_params']} parameters, {result['full']} steps of full "
          "size")
    print(f"{'optimizer':32} {'step ms':>9} {'opt. ms':>9} {'host ms':>9} {'share %':>8} "
          f"{'tokens/s':>9} {'max loss diff':>13}")
    for s in result["found"].values():
        print(f"{s['name']:32} {s['step_ms']:9.2f} {s['optimizer_ms']:9.3f} {s['host_ms']:9.3f} "
              f"{s['share']:8.2f} {s['tokens_s']:9.0f} {s['worst_loss']:13.2e}")
    sys.stdout.flush()


def spread(s):
    return (f"step {s['step_ms']:.2f} ms ({s['step_min']:.2f} to {s['step_max']:.2f} of {s['n']}), "
            f"optimizer {s['optimizer_ms']:.3f} ms ({s['optimizer_min']:.3f} to "
            f"{s['optimizer_max']:.3f}), host {s['host_ms']:.3f} ms, {s['share']:.2f}% of the step")


def loss_row(config, ours, like, common, control):
    peer = distance(ours, like) if like else None
    return rows.row(
        "qlora", f"{config}, largest loss difference", ours["worst_loss"], "", **common,
        limit_name="the goal", limit=1e-3, goal="G6 losses within 1e-3",
        lower_is_better=True,
        note=f"against {REFERENCE} over {ours['steps']} steps, at the last "
             f"{ours['last_loss']:.2e}, final loss {ours['losses'][-1]:.5f}" +
             (f"; against {like['name']} {peer:.2e}" if like else "") +
             (f"; {CONTROL} {control['worst_loss']:.2e}" if control else ""))


def make_rows(args, result, common, versions):
    found = result["found"]
    theirs = [s for name, s in found.items() if name not in OURS and name != CONTROL]
    best = max((s["tokens_s"] for s in theirs), default=None)
    for name in OURS:
        ours = found[name]
        config = (f"{name}, {args.shape} NF4 rank {result['rank']}, {args.batch} x {args.seq}, "
                  f"checkpointing {'on' if args.checkpointing else 'off'}")
        for s in theirs:
            peer = f"{s['name']} ({versions[s['name'].split()[0]]})"
            note = f"{spread(ours)}; theirs {spread(s)}"
            yield rows.row("qlora", config, ours["tokens_s"], "tokens/s", peer_name=peer,
                           peer=s["tokens_s"], **common, note=note,
                           goal="G6>=0.99 of the best of theirs" if s["tokens_s"] == best else "")
            yield rows.row("qlora", f"{config}, the optimizer", ours["optimizer_ms"], "ms",
                           peer_name=peer, peer=s["optimizer_ms"], **common, note=note,
                           lower_is_better=True)
        like = found.get(LIKE[name])
        yield rows.row("qlora", f"{config}, share of the step", ours["share"], "%", **common,
                       peer_name=like["name"] if like else "", goal="G6<=1%",
                       peer=like["share"] if like else None, lower_is_better=True,
                       note=spread(ours))
        yield loss_row(config, ours, like, common, found.get(CONTROL))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--ranks", default="16,64")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--full", type=int, default=14, help="steps of batch x seq tokens")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--no-checkpointing", dest="checkpointing", action="store_false")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--bitsandbytes", help="folder that holds the package")
    parser.add_argument("--no-peers", action="store_true", help="without bitsandbytes")
    parser.add_argument("--results", default="h200-qlora.csv")
    parser.add_argument("--raw", help="file for all losses and times, JSON")
    parser.add_argument("--quick", action="store_true", help="a tiny shape; no rows are kept")
    args = parser.parse_args()
    args.short = SHORT
    if args.quick:
        args.shape, args.ranks, args.steps, args.full = "tiny", "4,64", 10, 8
        args.seq, args.short, args.results = 64, (1, 32), os.devnull
    return args


def main():
    args = arguments()
    begin = time.monotonic()
    if args.bitsandbytes:
        sys.path.insert(0, args.bitsandbytes)
    import torch
    import spillway.optim  # before CUDA is used: the hook then reaches every allocator
    import gpu_model as model
    bnb = None
    if not args.no_peers:
        import bitsandbytes as bnb
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.device == "cpu" and not args.quick:
        sys.exit("no GPU: --quick runs a tiny shape on the CPU")
    kernel = model.use_bitsandbytes(args.device) if bnb else "torch"
    say(f"dequantisation by {kernel}")
    llama = model.Model(model.SHAPES[args.shape], args.device)
    Clock(torch, args.device).wait()
    say(f"{args.shape} built after {time.monotonic() - begin:.1f} s")
    versions = {"torch": torch.__version__, "bitsandbytes": bnb.__version__ if bnb else ""}
    common = {"gpu": gpu_step.gpu_name() if args.device == "cuda" else "none"}
    ranks, results = [int(r) for r in args.ranks.split(",")], []
    for number, rank in enumerate(ranks):
        now, end = time.monotonic(), begin + 60 * args.minutes
        deadline = now + (end - now) / (len(ranks) - number)
        results.append(measure(args, torch, bnb, llama, model, rank, deadline))
        with contextlib.redirect_stdout(None):  # the table says it in fewer words
            rows.append(args.results, list(make_rows(args, results[-1], common, versions)))
        if args.raw:
            with open(args.raw, "w") as out:
                json.dump(results, out)
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()
    for result in results:
        table(result)
    say(f"{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
