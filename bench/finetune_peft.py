"""Tokens a second of `spillway finetune` and of PEFT + torch: the same model, rows, batch and CPU.

Usage: .venv/bin/python bench/finetune_peft.py --model DIR [--rows N] [--tokens T] [--rounds R]

DIR is SmolLM2-135M-Instruct as scripts/smollm2.py writes it. LoRA of rank 16 on all linear layers of
an fp32 base, AdamW, one row a step, rows of about T tokens made from WordNet. Both sides run in
turn, R times, on the cores this process may use; a step's time leaves out the first two steps. torch
runs with gradient checkpointing, as spillway --keep 0, and without, as spillway's default. Thread
variables of the environment are dropped on both sides. Appends to bench/results/cpu-finetune.csv.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import rows

sys.path.insert(0, os.path.join(rows.ROOT, "scripts"))

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def clean_environment():
    dropped = ("OMP_", "OPENBLAS_", "MKL_", "GOTO_", "BLIS_", "NVPL_")
    return {k: v for k, v in os.environ.items() if not k.startswith(dropped)}


def token_rows(args):
    """Text rows, and their ids cut to args.tokens: the loss counts on every token on both sides."""
    import wordnet_rows
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    made = [{"text": row["prompt"] + row["completion"]} for row in
            wordnet_rows.rows(args.rows, shape="prompt", join=args.tokens // 12)]
    ids = [tokenizer(row["text"]).input_ids[:args.tokens + 1] for row in made]
    assert all(len(row) == args.tokens + 1 for row in ids), "a row is too short: raise join"
    return made, ids


def torch_step_seconds(args, ids, checkpointing):
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=16, lora_alpha=32, target_modules=LINEAR, task_type="CAUSAL_LM"))
    if checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
    seconds = []
    for row in ids:
        begin = time.perf_counter()
        batch = torch.tensor([row])
        model(input_ids=batch, labels=batch, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append((time.perf_counter() - begin) / (len(row) - 1))
    return seconds[2:]


def our_step_seconds(args, made, keep):
    with tempfile.TemporaryDirectory() as folder:
        data, log = os.path.join(folder, "rows.jsonl"), os.path.join(folder, "log.jsonl")
        with open(data, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in made)
        command = [args.spillway, "finetune", "--model", args.model, "--data", data, "--out",
                   os.path.join(folder, "out"), "--base", "fp32", "--rank", "16", "--state", "32bit",
                   "--seq", str(args.tokens), "--log", log, *keep]
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
        if done.returncode:
            sys.exit(done.stderr.strip())
        with open(log) as lines:
            return [line["ms"] / 1e3 / line["tokens"] for line in map(json.loads, lines)][2:]


def in_a_process(args, checkpointing):
    command = [sys.executable, __file__, "--model", args.model, "--rows", str(args.rows), "--tokens",
               str(args.tokens), "--torch-side", str(int(checkpointing))]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
    if done.returncode:
        sys.exit(done.stderr.strip()[-500:])
    return json.loads(done.stdout.splitlines()[-1])


def compare(args, made, label, checkpointing, keep):
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours += our_step_seconds(args, made, keep)
        theirs += in_a_process(args, checkpointing)
    rate = lambda seconds: 1 / statistics.median(seconds)
    spread = lambda s: f"{1 / max(s):.0f} to {1 / min(s):.0f}"
    return rows.row("finetune", f"SmolLM2-135M LoRA r16 fp32 base, {args.tokens} tokens, {label}",
                    rate(ours), "tokens/s", peer_name="PEFT + torch 2.13 AdamW", peer=rate(theirs),
                    note=f"ours {spread(ours)}, theirs {spread(theirs)} over {len(ours)} steps")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--spillway", default=os.path.join(rows.ROOT, "build", "spillway"))
    parser.add_argument("--torch-side", type=int, choices=(0, 1), help=argparse.SUPPRESS)
    args = parser.parse_args()
    made, ids = token_rows(args)
    if args.torch_side is not None:
        print(json.dumps(torch_step_seconds(args, ids, args.torch_side)))
        return
    rows.append("cpu-finetune.csv", [
        compare(args, made, "checkpointing", True, ("--keep", "0")),
        compare(args, made, "no checkpointing", False, ()),
    ])


if __name__ == "__main__":
    main()
