"""optimizer.step() of torch's fused AdamW and bitsandbytes' AdamW family on one GPU, as JSON.

Usage: python3 bench/gpu_peers.py [--bitsandbytes FOLDER] [--steps 15]

FOLDER holds the bitsandbytes package, where it is not installed. Sets as in gpu_step.py: one bf16
tensor of 268,435,456 elements, and the 448 fp32 tensors of a rank-64 LoRA of a 7B. Median of wall
time with the device synchronised before and after. "cold": all state of a paged optimizer is pushed
to the host before each step, untimed; the step prefetches it, as bitsandbytes always does. Managed
memory stays under 2 GiB: more is not measured ("too large").
"""
import argparse
import ctypes
import gc
import json
import statistics
import sys
import time

MOST_MANAGED = 2 << 30


def lora_shapes():
    hidden, wide, rank = 4096, 11008, 64
    ins = [hidden] * 6 + [wide]
    outs = [hidden] * 4 + [wide, wide, hidden]
    return [(rank, n) if a else (n, rank) for _ in range(32) for i, o in zip(ins, outs)
            for a, n in ((True, i), (False, o))]


def make_params(torch, name):
    shapes = [(268435456,)] if name == "268M bf16" else lora_shapes()
    dtype = torch.bfloat16 if name == "268M bf16" else torch.float32
    params = []
    for shape in shapes:
        p = torch.nn.Parameter(torch.randn(shape, device="cuda", dtype=dtype))
        p.grad = torch.randn_like(p) * 0.1
        params.append(p)
    return params


class Location(ctypes.Structure):
    """struct cudaMemLocation of the CUDA 13 runtime."""
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


def push_out(torch, cudart, optimizer):
    """All managed state to the host."""
    host = Location(2, 0)  # cudaMemLocationTypeHost
    for state in optimizer.state.values():
        for value in state.values():
            if getattr(value, "is_paged", False):
                code = cudart.cudaMemPrefetchAsync(
                    ctypes.c_void_p(value.data_ptr()), ctypes.c_size_t(value.nbytes), host,
                    ctypes.c_uint(0), ctypes.c_void_p(0))
                if code:
                    sys.exit(f"cudaMemPrefetchAsync: error {code}")
    torch.cuda.synchronize()


def time_steps(torch, optimizer, steps, before=lambda: None):
    times = []
    for i in range(steps + 2):
        before()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        if i >= 2:
            times.append((time.perf_counter() - begin) * 1e3)
    return {"ms": statistics.median(times), "min": min(times), "max": max(times)}


def free_paged(torch, bnb, optimizer):
    """bitsandbytes never frees managed memory; its page manager holds the tensors."""
    manager = bnb.functional.GlobalPageManager.get_instance()
    manager.paged_tensors.clear()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bitsandbytes")
    parser.add_argument("--steps", type=int, default=15)
    args = parser.parse_args()
    if args.bitsandbytes:
        sys.path.insert(0, args.bitsandbytes)
    import torch
    import bitsandbytes as bnb
    cudart = ctypes.CDLL("libcudart.so.13")
    found = {"torch": torch.__version__, "bitsandbytes": bnb.__version__}
    managed = 0
    for name in ("268M bf16", "lora448 fp32"):
        kinds = {
            "torch AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
            "bitsandbytes AdamW 32-bit": lambda p: bnb.optim.AdamW32bit(p, lr=1e-4),
            "bitsandbytes AdamW8bit": lambda p: bnb.optim.AdamW8bit(p, lr=1e-4),
            "bitsandbytes PagedAdamW8bit cold": lambda p: bnb.optim.PagedAdamW8bit(p, lr=1e-4),
        }
        for kind, make in kinds.items():
            params = make_params(torch, name)
            optimizer = make(params)
            before = (lambda: push_out(torch, cudart, optimizer)) if "cold" in kind else lambda: None
            if "cold" in kind:
                managed += sum(p.numel() for p in params) * 2 + len(params) * (4 << 20)
            if managed > MOST_MANAGED:
                found[f"{name}: {kind}"] = "too large"
            else:
                found[f"{name}: {kind}"] = time_steps(torch, optimizer, args.steps, before)
            free_paged(torch, bnb, optimizer)
            del optimizer, params
            gc.collect()
            torch.cuda.empty_cache()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
