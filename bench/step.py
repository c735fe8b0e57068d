"""The optimizer step on the CPU: fp32 and 8-bit state, ram and file stores, every budget.

Usage: python3 bench/step.py [--params 50M] [--steps 9] [--spillway build/spillway]
Appends to bench/results/cpu-step.csv. Rows with goal G10 compare the step whose state rests in RAM
and is updated there (paging mapped) with STREAM triad on the same threads, in the same process.
Rows with goal G3 compare the bytes that moved with the bound 2 x (state - resident).
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import rows

GOALS = {"32bit": "G10>=0.85", "8bit": "G10>=0.50"}


def bench(args, *options):
    command = [args.spillway, "bench", "step", "--device", "cpu", "--params", args.params,
               "--steps", str(args.steps), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    if not result["identical"]:
        sys.exit(f"{' '.join(command)}: the result differs from an unpaged run's")
    return result


def spread(result):
    return (f"{result['ms_min']:.1f} to {result['ms_max']:.1f} ms over {result['steps']} steps; "
            "identical to unpaged")


def in_ram(args):
    for state in ("32bit", "8bit"):
        for dtype in ("fp32", "bf16"):
            r = bench(args, "--paging", "mapped", "--state", state, "--dtype", dtype)
            yield rows.row("step", f"mapped {state} {dtype} {args.params}", r["step_gbs"], "GB/s",
                           limit_name="STREAM triad", limit=r["triad_gbs"], goal=GOALS[state],
                           note=f"median {r['ms_median']:.1f} ms; {spread(r)}")


def paged(args, store, label):
    for state in ("32bit", "8bit"):
        for percent in ("0%", "25%", "50%", "100%"):
            r = bench(args, "--paging", "copy", "--state", state, "--state-mem", percent, *store())
            moved = r["bytes_in"] + r["bytes_out"]
            yield rows.row("step", f"copy {label} {state} state-mem {percent} {args.params}",
                           r["ms_median"], "ms", goal="G3 bytes within 2%",
                           note=f"moved {moved} of {r['bound_bytes']} bytes bound; {spread(r)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", default="50M")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--spillway", default=os.path.join(rows.ROOT, "build", "spillway"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=rows.ROOT) as folder:
        count = iter(range(1000))
        on_disk = lambda: ("--store", f"file:{folder}/store-{next(count)}")
        rows.append("cpu-step.csv", [*in_ram(args), *paged(args, tuple, "ram"),
                                     *paged(args, on_disk, "file")])


if __name__ == "__main__":
    main()
