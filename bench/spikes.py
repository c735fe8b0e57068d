"""10,000 optimizer steps with random spikes of up to all free memory on the cpu device: no failure,
no growth of memory, parameters equal to the unpaged run. Rows in bench/results/cpu-spikes.csv.

Usage: python3 bench/spikes.py [STEPS] [SEED]      after make
"""
import json
import os
import subprocess
import sys
import tempfile

import rows

BUILD = os.environ.get("SPW_BUILD", os.path.join(rows.ROOT, "build"))


def measure(steps, seed, store, state):
    """What the program says; it exits 1, with a reason, when something does not hold."""
    run = subprocess.run([os.path.join(BUILD, "bench", "bench_spikes"), str(steps), store, state,
                          str(seed)], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"bench_spikes {store} {state} seed {seed}: {run.stderr or run.stdout}")
    return json.loads(run.stdout)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    subprocess.run(["cmake", "--build", BUILD, "--target", "bench_spikes"], check=True,
                   stdout=subprocess.DEVNULL)
    result = []
    with tempfile.TemporaryDirectory() as folder:
        for store in ("ram", f"file:{folder}/store"):
            for state in ("32bit", "8bit"):
                m = measure(steps, seed, store, state)
                growth = (m["peak_kb"] - m["peak_kb_half"]) / 1024
                result.append(rows.row(
                    "spikes", f"{store.split(':')[0]} {state} 256K fp32, 6 MiB device, seed {seed}",
                    m["failures"], "failures", goal="G5 none in 10000",
                    note=f"{m['steps']} steps, {m['spikes']} spikes, {m['reclaims']} reclaims of "
                         f"{m['bytes_reclaimed'] / 2**30:.1f} GiB; identical to unpaged; memory grew "
                         f"{growth:.1f} MiB in the second half, peak {m['peak_kb'] / 1024:.0f} MiB"))
    rows.append("cpu-spikes.csv", result)


main()
