"""The link of a GPU, pinning, and paging through a small pinned ring.

Usage: python3 bench/gpu_link.py [--steps 5] [--spillway build/spillway] [--results FILE.csv]

Rows: copies in, out and both ways at several sizes (what a step of as large pages is held to); G8,
how fast the ram store's memory is pinned, beside cuMemAllocHost on the same machine in the same
run; G7, a step with nothing resident and at most 256 MiB of pinned memory, beside what the link
and the host's own copying allow: every byte that passes the link is copied once by the host, so
the limit of bytes in and out together is the lesser of the duplex link and the host's memcpy.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import time

import gpu_step
import rows

MIB = 1 << 20
SIZES = (2 * MIB, 8 * MIB, 16 * MIB, 32 * MIB)
PINNED = 256 * MIB


def spillway(args, *options):
    command = [args.spillway, "bench", *options, "--device", "cuda", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def alloc_host_gbs(n_bytes):
    """cuMemAllocHost (cudaHostAlloc's driver call) of n_bytes, GB/s."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_void_p()
    for code in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                 cuda.cuCtxSetCurrent(context)):
        if code:
            sys.exit(f"the CUDA driver says {code}")
    begin = time.perf_counter()
    code = cuda.cuMemAllocHost_v2(ctypes.byref(pointer), ctypes.c_size_t(n_bytes))
    rate = n_bytes / 1e9 / (time.perf_counter() - begin)
    if code:
        sys.exit(f"cuMemAllocHost says {code}")
    cuda.cuMemFreeHost(pointer)
    cuda.cuDevicePrimaryCtxRelease_v2(0)
    return rate


def link_rows(found, gpu):
    for size, r in found.items():
        config = f"{size // MIB} MiB a copy"
        for way in ("in", "out", "both"):
            yield rows.row("link", f"{way}, {config}", r[f"{way}_gbs"], "GB/s", gpu=gpu)
    yield rows.row("link", "within the device", r["device_gbs"], "GB/s", gpu=gpu,
                   note="read and written")
    yield rows.row("link", "within host memory", r["host_gbs"], "GB/s", gpu=gpu,
                   note="bytes copied, all cores")
    yield rows.row("link", "pinning 1 GiB", r["pin_gbs"], "GB/s", gpu=gpu, goal="G8>=5",
                   peer_name="cuMemAllocHost", peer=alloc_host_gbs(1 << 30))


def ring_rows(args, found, gpu):
    host = max(r["host_gbs"] for r in found.values())
    for state in ("32bit", "8bit"):
        r = spillway(args, "step", "--params", "268435456", "--state", state, "--steps",
                     str(args.steps), "--paging", "copy", "--state-mem", "0%", "--pinned-mem",
                     f"{PINNED // MIB}MiB")
        if not r["identical"]:
            sys.exit(f"pinned ring, {state}: the result differs from an unpaged run's")
        moved = (r["bytes_in"] + r["bytes_out"]) / r["ms_median"] / 1e6
        yield rows.row("step", f"pinned ring of 256 MiB at most, 268M bf16 {state}", moved, "GB/s",
                       gpu=gpu, limit_name="min(duplex link, host memcpy)",
                       limit=min(r["probe_gbs"], host), goal="G7>=0.90", note=gpu_step.note(r))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--spillway", default=os.path.join(rows.ROOT, "build", "spillway"))
    parser.add_argument("--results", default="h200-link.csv")
    args = parser.parse_args()
    gpu = gpu_step.gpu_name()
    found = {size: spillway(args, "link", "--copy-size", f"{size // MIB}MiB") for size in SIZES}
    rows.append(args.results, [*link_rows(found, gpu), *ring_rows(args, found, gpu)])


if __name__ == "__main__":
    main()
