"""Words and glosses of WordNet 3.0, from Debian's package wordnet-base.

WordNet 3.0 Copyright 2006 by Princeton University. All rights reserved. Its licence allows use,
copies, changes and distribution for any purpose without fee, with this notice: it stands in full in
/usr/share/doc/wordnet-base/copyright and in examples/demo/README.md.
"""
import os
import re
import sys

FOLDER = "/usr/share/wordnet"
PARTS = ("noun", "verb", "adj", "adv")


def available():
    return os.path.exists(os.path.join(FOLDER, "data.noun"))


def entries(part):
    """(word, gloss, [example sentences]) of each synset in file order; the word is its first."""
    path = os.path.join(FOLDER, f"data.{part}")
    if not os.path.exists(path):
        sys.exit(f"{path} is missing: apt-get install wordnet-base")
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("  ") or "|" not in line:
                continue
            head, gloss = line.split("|", 1)
            word = re.sub(r"\(.*\)", "", head.split()[4]).replace("_", " ")
            gloss = gloss.strip()
            sentences = re.findall(r'"([^"]+)"', gloss)
            meaning = re.sub(r'[;,]?\s*"[^"]*"', "", gloss).strip(" ;,-")
            if meaning:
                yield word, meaning, sentences


def common_nouns():
    """(word, meaning) of plain lower-case nouns with a short meaning."""
    seen = set()
    for word, meaning, _ in entries("noun"):
        plain = re.fullmatch(r"[a-z]{3,12}", word) and len(meaning) < 90 and word not in seen
        if plain and not re.search(r"[();:]", meaning):
            seen.add(word)
            yield word, meaning
