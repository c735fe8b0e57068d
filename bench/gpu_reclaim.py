"""State gives way: a GPU taken by ballast, and programs that allocate while there is state to give.

Usage: python3 bench/gpu_reclaim.py [--params 1000000000] [--results FILE.csv]

Ballast by plain cudaMalloc takes the card until 3 GiB are free beside resident AdamW state (8 bytes a
parameter). Then torch allocates 1 GiB at a time, one of them on the backward thread, until out of
memory: that may come only when no state is left. With the default allocator and expandable segments,
the hook installed before and after torch's first use of CUDA, and preloaded; also with torch's cache
cut to pieces and one large allocation asked; and through spw_malloc. Afterwards all is freed, the
state comes back, and the parameters have the bits of an undisturbed run. Each case is a process of
its own. Rows with goal G5 compare the time of giving back with device-to-host copies of the same
bytes: all pages are dirty after a step.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import time

GIB = 1 << 30
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPIKES = 6
CASES = [("spikes", "default")] + [(way, allocator) for way in ("spw_malloc", "early", "late", "preload", "fragmented")
         for allocator in ("default", "expandable")
         if (way, allocator) not in (("spw_malloc", "expandable"), ("fragmented", "expandable"))]


def take_ballast(torch, leave):
    cudart = ctypes.CDLL("libcudart.so.13")  # straight to the runtime: not through anybody's hook
    held = []
    while torch.cuda.mem_get_info()[0] > leave + GIB:
        pointer = ctypes.c_void_p()
        if cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(GIB)):
            break
        held.append(pointer)
    return cudart, held


def make(torch, spw, device, params, paging):
    generator = torch.Generator("cuda").manual_seed(1)
    p = torch.randn(params, device="cuda", dtype=torch.bfloat16, generator=generator)
    g = torch.randn(params, device="cuda", dtype=torch.bfloat16, generator=generator)
    pager = spw.Pager(device, paging=paging, occupancy=1.0)
    optim = spw.Optim(pager, state="32bit")
    optim.add(p, g)
    return p, g, pager, optim


def fill_with_tensors(torch, allocate):
    """1 GiB at a time until out of memory; how many there were."""
    held = []
    try:
        while len(held) < 200:
            held.append(allocate())
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if "out of" not in str(error).lower():
            raise
    torch.cuda.synchronize()
    return held


def on_backward_thread(torch):
    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            torch.empty(GIB + (7 << 20), dtype=torch.uint8, device="cuda").fill_(1)
            return gradient

    x = torch.ones(4, device="cuda", requires_grad=True)
    Greedy.apply(x).sum().backward()
    torch.cuda.synchronize()


def fragment(torch):
    """A cache of 64 MiB pieces, every other one in use."""
    pieces = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(32)]
    return pieces[::2]


def spikes(torch, pager, optim):
    """Half of the state is taken back again and again, a step between: the first time its pages are
    dirty, later they were saved ahead. Milliseconds and bytes of each."""
    times = []
    half = pager.stats()["state_bytes"] // 2
    for _ in range(SPIKES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        freed = pager.reclaim(half)
        times.append((1e3 * (time.perf_counter() - begin), freed))
        optim.step(lr=1e-3)
        torch.cuda.synchronize()
        time.sleep(0.3)
    return times


def hook_counts(hook):
    n, given, ms = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_double()
    hook.spw_hook_counts(ctypes.byref(n), ctypes.byref(given), ctypes.byref(ms))
    return n.value, given.value, ms.value


def case(way, params):
    import torch
    hook = ctypes.CDLL(os.environ["SPILLWAY_HOOK"]) if way != "spw_malloc" else None
    if way == "late":
        torch.zeros(1, device="cuda")
    reach = hook.spw_hook_install() if hook else 0
    sys.path.insert(0, os.path.join(ROOT, "python"))
    import spillway as spw
    with spw.Device("cuda:0") as device:
        p, g, pager, optim = make(torch, spw, device, params, "copy")
        for _ in range(3):
            optim.step(lr=1e-3)
        torch.cuda.synchronize()
        resident = pager.stats()["resident_bytes"]
        if way == "spikes":
            times = spikes(torch, pager, optim)
            q, g2, pager2, plain = make(torch, spw, device, params, "off")
            for _ in range(3 + SPIKES):
                plain.step(lr=1e-3)
            torch.cuda.synchronize()
            print(json.dumps({"spikes": [ms / (n / GIB) if n else None for ms, n in times],
                              "bytes": [n for _, n in times], "same_bits": bool(torch.equal(p, q)),
                              "cleaned": pager.stats()["bytes_cleaned"]}))
            for thing in (optim, plain, pager, pager2):
                thing.close()
            return
        cudart, ballast = take_ballast(torch, 3 * GIB)
        kept = fragment(torch) if way == "fragmented" else None
        before = time.perf_counter()
        if way == "spw_malloc":
            held = fill_with_tensors(torch, lambda: pager.malloc(GIB))
        elif way == "fragmented":
            held = [torch.empty(5 * GIB, dtype=torch.uint8, device="cuda").fill_(1)]
        else:
            on_backward_thread(torch)
            held = fill_with_tensors(
                torch, lambda: torch.empty(GIB, dtype=torch.uint8, device="cuda").fill_(1))
        seconds = time.perf_counter() - before
        left = pager.stats()
        counts = hook_counts(hook) if hook else (left["reclaims"], left["bytes_reclaimed"],
                                                 seconds * 1e3)
        n_held = len(held)
        if way == "spw_malloc":
            for address in held:
                pager.free(address)
        del held, kept
        for pointer in ballast:
            cudart.cudaFree(pointer)
        torch.cuda.empty_cache()
        back = []
        for _ in range(8):
            optim.step(lr=1e-3)
            torch.cuda.synchronize()
            back.append(pager.stats()["resident_bytes"])
        q, g2, pager2, plain = make(torch, spw, device, params, "off")
        for _ in range(11):
            plain.step(lr=1e-3)
        torch.cuda.synchronize()
        result = {
            "reach": reach, "resident": resident, "held": n_held,
            "left": left["resident_bytes"], "reclaims": left["reclaims"],
            "given": counts[1], "ms": counts[2], "repeated": counts[0],
            "steps_until_back": next((i + 1 for i, b in enumerate(back) if b == resident), None),
            "same_bits": bool(torch.equal(p, q)),
            "retries": torch.cuda.memory_stats()["num_alloc_retries"],
        }
        for thing in (optim, plain, pager, pager2):
            thing.close()
    print(json.dumps(result))


def run_case(args, way, allocator):
    environment = dict(os.environ)
    if allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if way == "preload":
        environment["LD_PRELOAD"] = environment["SPILLWAY_HOOK"]
    command = [sys.executable, os.path.abspath(__file__), "--case", way, "--params",
               str(args.params)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", type=int, default=1000000000)
    parser.add_argument("--results", default="h200-reclaim.csv")
    parser.add_argument("--case")
    args = parser.parse_args()
    build = os.path.join(ROOT, "build", "src")
    os.environ.setdefault("SPILLWAY_LIB", os.path.join(build, "libspillway.so"))
    os.environ.setdefault("SPILLWAY_HOOK", os.path.join(build, "libspillway_hook.so"))
    if args.case:
        return case(args.case, args.params)
    import gpu_step
    import rows
    found = []
    for way, allocator in CASES:
        r = run_case(args, way, allocator)
        print(way, allocator, json.dumps(r), flush=True)
        if "error" in r:
            continue
        if way == "spikes":
            found.append(rows.row(
                "reclaim", f"half of the state, dirty, {args.params} parameters", r["spikes"][0],
                "ms/GiB", gpu=gpu_step.gpu_name(), goal="G5 dirty <= 1.15x the copy",
                note=f"same bits {r['same_bits']}"))
            found.append(rows.row(
                "reclaim", f"half of the state, saved ahead, {args.params} parameters",
                sorted(r["spikes"][1:])[len(r["spikes"]) // 2], "ms/GiB", gpu=gpu_step.gpu_name(),
                goal="G5 clean about 1 ms a GiB",
                note=f"each: {', '.join(f'{x:.2f}' for x in r['spikes'])}; {r['cleaned']} bytes "
                     f"saved ahead; same bits {r['same_bits']}"))
            continue
        gib = r["given"] / GIB
        per_gib = r["ms"] / gib if gib else None
        found.append(rows.row(
            "reclaim", f"{way} {allocator} {args.params} parameters", per_gib, "ms/GiB",
            gpu=gpu_step.gpu_name(),
            note=f"{gib:.2f} GiB given back in {r['ms']:.1f} ms, {r['reclaims']} reclaims; "
                 f"{r['held']} allocations of 1 GiB, {r['left']} bytes of state left at out of "
                 f"memory; torch retried {r['retries']}; all resident again after "
                 f"{r['steps_until_back']} steps; same bits {r['same_bits']}; reach {r['reach']}"))
    rows.append(args.results, found)


if __name__ == "__main__":
    main()
