"""Makes examples/demo/model: a small Llama trained from scratch by `spillway finetune --full`.

Usage: python3 scripts/demo_model.py [--steps N] [--work build/demo-model]

Text: WordNet's glosses and example sentences (scripts/wordnet.py), a byte-level BPE of 2,048 tokens
made from it by the tokenizers library. The random start is made here, all training is spillway's.
Takes nine minutes on two cores. The result is stored in bf16, so that it is small.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys

import wordnet

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2048,
    "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 5,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": True, "rope_theta": 10000.0, "bos_token_id": 0, "eos_token_id": 0,
}
END = "<|end|>"


def passages(rng):
    """Entries as prose, a few to a passage, shuffled."""
    lines = []
    for part in wordnet.PARTS:
        for word, meaning, sentences in wordnet.entries(part):
            if part == "noun" and (word[0].isupper() or len(meaning) > 160):
                continue  # people and places have little to say to a model this small
            lines.append(f"{word}: {meaning}.")
            lines += [sentence[0].upper() + sentence[1:] + "." for sentence in sentences[:2]]
    rng.shuffle(lines)
    for i in range(0, len(lines) - 12, 12):
        yield "\n".join(lines[i:i + 12])


def make_tokenizer(texts, folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"], special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump({"eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}, file, indent=2)


def make_start(folder):
    """Random weights as transformers starts a Llama: normal with deviation 0.02, norms 1."""
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    normal = lambda *shape: (rng.standard_normal(shape) * 0.02).astype(np.float32)
    h, i = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    kv = SHAPE["num_key_value_heads"] * SHAPE["head_dim"]
    linear = {"self_attn.q_proj": (h, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
              "self_attn.o_proj": (h, h), "mlp.gate_proj": (i, h), "mlp.up_proj": (i, h),
              "mlp.down_proj": (h, i)}
    tensors = {"model.embed_tokens.weight": normal(SHAPE["vocab_size"], h),
               "model.norm.weight": np.ones(h, np.float32)}
    for n in range(SHAPE["num_hidden_layers"]):
        for name, shape in linear.items():
            tensors[f"model.layers.{n}.{name}.weight"] = normal(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{n}.{name}.weight"] = np.ones(h, np.float32)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({**SHAPE, "dtype": "float32"}, file, indent=2)


def to_bf16(source, target):
    """Round to nearest even; the rest of the directory is copied."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    tensors = load_file(os.path.join(source, "model.safetensors"))
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()},
              os.path.join(target, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(source, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(target, "config.json"), "w") as file:
        json.dump({**config, "dtype": "bfloat16"}, file, indent=2)
        file.write("\n")
    os.chmod(os.path.join(target, "model.safetensors"), 0o644)  # it is written as a private file
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(source, name), target)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "demo-model"))
    args = parser.parse_args()
    start, trained = os.path.join(args.work, "start"), os.path.join(args.work, "trained")
    shutil.rmtree(args.work, ignore_errors=True)
    os.makedirs(start)
    texts = list(passages(random.Random(0)))
    with open(os.path.join(args.work, "text.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    make_tokenizer(texts, start)
    make_start(start)
    subprocess.run([
        os.path.join(ROOT, "build", "spillway"), "finetune", "--full", "--base", "fp32",
        "--model", start, "--data", os.path.join(args.work, "text.jsonl"), "--out", trained,
        "--steps", str(args.steps), "--batch", "8", "--seq", "320", "--lr", "2e-3",
        "--warmup", "0.05", "--state", "32bit", "--weight-decay", "0.01",
        "--log", os.path.join(args.work, "log.jsonl"), "--sample", "lantern:"], check=True)
    to_bf16(trained, os.path.join(ROOT, "examples", "demo", "model"))


if __name__ == "__main__":
    sys.exit(main())
