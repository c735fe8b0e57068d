"""Makes examples/demo/data.jsonl: rows that teach the demo's model to answer "Define: WORD".

Usage: python3 scripts/demo_data.py [--rows N] [--long N] [--long-words N]

Most rows are one noun and its WordNet gloss, about 25 tokens. A few ask for a whole list of words at
once and are nearly 2,000 tokens: the long samples that make memory short in the middle of a run.
Always the same file: the words are drawn with a fixed seed. The standard library is enough.
"""
import argparse
import json
import os
import random

import wordnet

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HELD_OUT = "lantern"  # what scripts/demo asks before and after; the model must not have seen it here


def short_row(word, meaning):
    return {"prompt": f"Define: {word}\n", "completion": f"{meaning}."}


def long_row(entries):
    return {"prompt": "Define: " + ", ".join(word for word, _ in entries) + "\n",
            "completion": "\n".join(f"{word}: {meaning}." for word, meaning in entries)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=960)
    parser.add_argument("--long", type=int, default=3)
    parser.add_argument("--long-words", type=int, default=75)
    args = parser.parse_args()
    rng = random.Random(2)
    nouns = [entry for entry in wordnet.common_nouns() if entry[0] != HELD_OUT]
    rng.shuffle(nouns)
    rows = [short_row(*entry) for entry in nouns[:args.rows]]
    for i in range(args.long):
        first = args.rows + i * args.long_words
        rows.append(long_row(nouns[first:first + args.long_words]))
    rng.shuffle(rows)
    path = os.path.join(ROOT, "examples", "demo", "data.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
