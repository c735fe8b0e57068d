"""Draws time and bytes of a step against the budget, from bench/results/h200-step.csv.

Usage: python3 bench/plot_budget.py [FILE.csv] [OUT.svg] (default docs/h200-budget.svg)
Needs matplotlib (PyPI). The last row of each configuration counts.
"""
import csv
import os
import re
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402 (the backend comes first)

import rows

SETS = (("268M bf16", "268M bf16 parameters, one tensor"),
        ("lora448 fp32", "LoRA of rank 64: 448 fp32 tensors, 160M"))


def read(path):
    """{(set, state): {percent: (ms, bytes)}}"""
    found = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            config = re.fullmatch(r"copy (\d+)% (.+) (32bit|8bit)", row["config"])
            note = re.search(r"([\d.]+) ms \(.*moved (\d+) of", row["note"])
            if config and note:
                series = found.setdefault((config[2], config[3]), {})
                series[int(config[1])] = (float(note[1]), int(note[2]))
    return found


def main():
    source = sys.argv[1] if len(sys.argv) > 1 else os.path.join(
        rows.ROOT, "bench", "results", "h200-step.csv")
    target = sys.argv[2] if len(sys.argv) > 2 else os.path.join(rows.ROOT, "docs",
                                                                "h200-budget.svg")
    found = read(source)
    plt.rcParams["svg.hashsalt"] = "spillway"  # the same file from the same figures
    figure, axes = plt.subplots(2, 2, figsize=(9, 6), sharex=True, layout="constrained")
    for column, (name, title) in enumerate(SETS):
        for state in ("32bit", "8bit"):
            series = sorted(found[name, state].items())
            percents = [p for p, _ in series]
            axes[0][column].plot(percents, [ms for _, (ms, _) in series], marker="o", label=state)
            axes[1][column].plot(percents, [b / 1e9 for _, (_, b) in series], marker="o",
                                 label=state)
        axes[0][column].set_title(title)
        axes[1][column].set_xlabel("budget, % of the state")
    axes[0][0].set_ylabel("ms a step")
    axes[1][0].set_ylabel("GB moved in and out")
    for axis in axes.flat:
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
