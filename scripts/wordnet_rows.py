"""Instruction rows from WordNet: what is a ...? Its gloss.

Usage: python3 scripts/wordnet_rows.py OUT.jsonl [--rows N] [--skip K] [--join J]
                                       [--format messages|alpaca|prompt]

Deterministic: every 97th plain noun of WordNet 3.0 (licence: scripts/wordnet.py), K rows passed
over. --join puts J questions and answers into one row, for rows of some length.
"""
import argparse
import json

import wordnet


def questions():
    nouns = list(wordnet.common_nouns())
    for start in range(97):
        for word, meaning in nouns[start::97]:
            article = "an" if word[0] in "aeiou" else "a"
            yield f"What is {article} {word}?", meaning[0].upper() + meaning[1:] + "."


def row(shape, question, answer):
    if shape == "messages":
        return {"messages": [{"role": "user", "content": question},
                             {"role": "assistant", "content": answer}]}
    if shape == "alpaca":
        return {"instruction": question, "input": "", "output": answer}
    return {"prompt": question + "\n", "completion": answer}


def rows(count, skip=0, shape="messages", join=1):
    """`count` rows as dicts."""
    asked = questions()
    for _ in range(skip * join):
        next(asked)
    for _ in range(count):
        pairs = [next(asked) for _ in range(join)]
        question = "\n".join(q for q, _ in pairs)
        yield row(shape, question, "\n".join(a for _, a in pairs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--join", type=int, default=1)
    parser.add_argument("--format", choices=("messages", "alpaca", "prompt"), default="messages")
    args = parser.parse_args()
    with open(args.out, "w", encoding="utf-8") as file:
        for each in rows(args.rows, args.skip, args.format, args.join):
            file.write(json.dumps(each, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
