"""The optimizer step on a GPU: every budget, both kinds of state, one big tensor and a LoRA set.

Usage: python3 bench/gpu_step.py [--steps 9] [--spillway build/spillway] [--results FILE.csv]
                                 [--quick] [--bitsandbytes FOLDER | --no-peers]
Rows with goal G1 compare the step whose state is all on the device with copies within the device;
G2 the step with nothing resident with copies both ways at once over the link, of the same page
size; G3 the bytes that moved with the bound 2 x (state - resident). Limits are measured in the same
process, each row after its own steps. Every row's parameters equal an unpaged run's bit for bit.
Rows in ms stand beside torch and bitsandbytes (gpu_peers.py), measured just before on the same card.
"""
import argparse
import json
import os
import subprocess
import sys

import rows

SETS = {"268M bf16": ("--params", "268435456", "--dtype", "bf16"),
        "lora448 fp32": ("--set", "lora448", "--dtype", "fp32")}
BUDGETS = (100, 95, 90, 75, 50, 25, 0)
RESIDENT_GOAL = {"32bit": "G1>=0.90", "8bit": "G1>=0.80"}


def bench(args, *options):
    command = [args.spillway, "bench", "step", "--device", "cuda", "--steps", str(args.steps),
               "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    if not result["identical"]:
        sys.exit(f"{' '.join(command)}: the result differs from an unpaged run's")
    return result


def note(r):
    moved = ("" if r["bound_bytes"] is None else
             f"moved {r['bytes_in'] + r['bytes_out']} of {r['bound_bytes']} bytes bound; ")
    return (f"{r['ms_median']:.3f} ms ({r['ms_min']:.3f} to {r['ms_max']:.3f} over {r['steps']} "
            f"steps); {moved}pages of {r['page_bytes'] >> 10} KiB; identical to unpaged")


def make_row(name, state, way, r, gpu):
    config = f"{way} {name} {state}"
    moved = r["bytes_in"] + r["bytes_out"] if way != "unified" else 0
    if moved:
        gbs = moved / r["ms_median"] / 1e6
        goal = "G2>=0.95" if r["resident_bytes"] == 0 else "G3 bytes within 2%"
        return rows.row("step", config, gbs, "GB/s", gpu=gpu, limit_name="duplex link",
                        limit=r["probe_gbs"], goal=goal, note=note(r))
    goal = "" if way in ("mapped", "unified") else RESIDENT_GOAL[state]
    return rows.row("step", config, r["step_gbs"], "GB/s", gpu=gpu, limit_name="device copy",
                    limit=r["copy_gbs"], goal=goal, note=note(r))


PEERS = {("copy 100%", "32bit"): ("bitsandbytes AdamW 32-bit", "torch AdamW fused"),
         ("copy 100%", "8bit"): ("bitsandbytes AdamW8bit", "torch AdamW fused"),
         ("copy 0%", "8bit"): ("bitsandbytes PagedAdamW8bit cold",)}


def measure_peers(args):
    if args.no_peers:
        return {}
    command = [sys.executable, os.path.join(rows.ROOT, "bench", "gpu_peers.py")]
    if args.bitsandbytes:
        command += ["--bitsandbytes", args.bitsandbytes]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def peer_rows(peers, name, state, way, r, gpu):
    for kind in PEERS.get((way, state), ()):
        found = peers.get(f"{name}: {kind}")
        if isinstance(found, dict):
            version = peers["torch" if kind.startswith("torch") else "bitsandbytes"]
            yield rows.row("step", f"{way} {name} {state}", r["ms_median"], "ms", gpu=gpu,
                           peer_name=f"{kind} ({version})", peer=found["ms"],
                           lower_is_better=True,
                           note=f"theirs {found['min']:.3f} to {found['max']:.3f} ms; {note(r)}")


def gpu_name():
    done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                          capture_output=True, text=True)
    return done.stdout.strip().replace(", ", " driver ") or "unknown GPU"


def ways(args, name, state):
    yield "off", ("--paging", "off")
    for percent in (100, 0) if args.quick else BUDGETS:
        yield f"copy {percent}%", ("--paging", "copy", "--state-mem", f"{percent}%")
    yield "mapped", ("--paging", "mapped")
    if name != "268M bf16" or state == "8bit":  # managed memory stays far under 2 GiB
        yield "unified", ("--paging", "unified")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--spillway", default=os.path.join(rows.ROOT, "build", "spillway"))
    parser.add_argument("--results", default="h200-step.csv")
    parser.add_argument("--quick", action="store_true", help="100%% and 0%% only")
    parser.add_argument("--bitsandbytes", help="folder that holds the package")
    parser.add_argument("--no-peers", action="store_true")
    args = parser.parse_args()
    gpu = gpu_name()
    peers = measure_peers(args)
    found = []
    for name, options in SETS.items():
        for state in ("32bit", "8bit"):
            for way, paging in ways(args, name, state):
                r = bench(args, *options, "--state", state, *paging)
                found.append(make_row(name, state, way, r, gpu))
                found.extend(peer_rows(peers, name, state, way, r, gpu))
    rows.append(args.results, found)


if __name__ == "__main__":
    main()
