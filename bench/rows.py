"""Rows of bench/results/*.csv: one a configuration, columns as docs/development.md says.

A ratio above 1 means ours is better; limit_ratio is the share of the limit reached.
"""
import csv
import datetime
import os
import platform
import subprocess

COLUMNS = [
    "date", "commit", "machine", "gpu", "bench", "config", "ours", "unit", "limit_name", "limit",
    "limit_ratio", "peer_name", "peer", "peer_ratio", "goal", "note",
]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def machine():
    """CPU model, usable cores, memory: what a reader needs to judge a figure."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    cores = len(os.sched_getaffinity(0))
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    level = next((n for n in ("avx512f", "avx2", "sse4_2") if n in open("/proc/cpuinfo").read()), "")
    return f"{model} {level} {cores} cores {gib:.0f} GiB Linux {platform.release().split('-')[0]}"


def commit():
    """The commit that was measured; '+' when the tree had changes beyond bench/results. SPW_COMMIT
    says it where a copy without its history is measured."""
    if os.environ.get("SPW_COMMIT"):
        return os.environ["SPW_COMMIT"]
    run = lambda *a: subprocess.run(["git", *a], cwd=ROOT, capture_output=True, text=True).stdout
    changed = [l for l in run("status", "--porcelain").splitlines() if "bench/results/" not in l]
    return run("rev-parse", "--short=12", "HEAD").strip() + ("+" if changed else "")


def ratio(ours, other, lower_is_better=False):
    if not other or not ours:
        return ""
    return f"{(other / ours if lower_is_better else ours / other):.3f}"


def row(bench, config, ours, unit, *, limit_name="", limit=None, peer_name="", peer=None, goal="",
        gpu="", note="", lower_is_better=False):
    text = lambda value: "" if value is None else f"{value:.4g}"
    return {
        "date": datetime.date.today().isoformat(), "commit": commit(), "machine": machine(),
        "gpu": gpu, "bench": bench, "config": config, "ours": text(ours), "unit": unit,
        "limit_name": limit_name, "limit": text(limit),
        "limit_ratio": ratio(ours, limit, lower_is_better), "peer_name": peer_name,
        "peer": text(peer), "peer_ratio": ratio(ours, peer, lower_is_better), "goal": goal,
        "note": note,
    }


def append(name, rows):
    """Adds rows to bench/results/NAME, with a heading if the file is new, and prints them."""
    path = os.path.join(ROOT, "bench", "results", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = not os.path.exists(path)
    with open(path, "a", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        for r in rows:
            writer.writerow(r)
            print("  ".join(f"{k}={r[k]}" for k in COLUMNS[4:] if r[k]))
