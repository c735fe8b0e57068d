"""A real model on real rows: SmolLM2-135M-Instruct, instruction rows made from WordNet.

Twenty rows here, held-out loss on ten others; SPW_SMOLLM2_ROWS=200 makes it a hand trial.
"""
import json
import math
import os
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
bitsandbytes = pytest.importorskip("bitsandbytes")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import wordnet  # noqa: E402
import wordnet_rows  # noqa: E402
from test_parity_model import ours  # noqa: E402

ROWS = int(os.environ.get("SPW_SMOLLM2_ROWS", "20"))
HELD_OUT = max(10, ROWS // 4)

pytestmark = pytest.mark.skipif(not wordnet.available(),
                                reason="NO wordnet-base, SmolLM2 is not trained: scripts/setup test")


def write_rows(path, count, **options):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in wordnet_rows.rows(count, **options))


@pytest.fixture(scope="module")
def trained(spillway, smollm2_dir, tmp_path_factory):
    """(folder, log): an adapter of rank 8 after two epochs on an fp32 base."""
    folder = tmp_path_factory.mktemp("smollm2")
    write_rows(folder / "rows.jsonl", ROWS)
    run = spillway("finetune", "--model", smollm2_dir, "--data", folder / "rows.jsonl", "--out",
                   folder / "out", "--base", "fp32", "--rank", 8, "--epochs", 2, "--batch", 2,
                   "--lr", "1e-3", "--log", folder / "log.jsonl")
    assert run.returncode == 0, run.stderr
    with open(folder / "log.jsonl") as lines:
        return folder, [json.loads(line) for line in lines]


def held_out(smollm2_dir):
    """Token rows by transformers' own template: targets on the answer and its end of turn."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    rows = []
    for row in wordnet_rows.rows(HELD_OUT, skip=ROWS):
        messages = row["messages"]
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        head = tokenizer.apply_chat_template(messages[:1], tokenize=True, return_dict=False,
                                             add_generation_prompt=True)
        assert ids[:len(head)] == head
        last = len(ids) - 1 - ids[::-1].index(tokenizer.eos_token_id)
        targets = [ids[i + 1] if len(head) <= i + 1 <= last else -1 for i in range(len(ids) - 1)]
        rows.append((ids[:-1], targets))
    return rows


def peft_loss(smollm2_dir, adapter, rows, prepare=lambda model: None):
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    prepare(model)
    model = peft.PeftModel.from_pretrained(model, adapter).eval()
    total, n = 0.0, 0
    with torch.no_grad():
        for tokens, targets in rows:
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
            total += torch.nn.functional.cross_entropy(
                logits, torch.tensor(targets), ignore_index=-1, reduction="sum").item()
            n += sum(t >= 0 for t in targets)
    return total / n


def through_nf4(model):
    """Every linear weight of the blocks through bitsandbytes' NF4 with double quantisation."""
    functional = bitsandbytes.functional
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            codes, state = functional.quantize_4bit(module.weight.data, blocksize=64,
                                                    quant_type="nf4", compress_statistics=True)
            module.weight.data = functional.dequantize_4bit(codes, state).float()


def test_the_loss_falls(trained):
    losses = [line["loss"] for line in trained[1]]
    assert all(map(math.isfinite, losses))
    half = len(losses) // 2
    assert sum(losses[half:]) / half < 0.9 * sum(losses[:half]) / half


def test_peft_gives_our_held_out_loss(trained, smollm2_dir, tmp_path):
    rows = held_out(smollm2_dir)
    mine = ours(smollm2_dir, rows, tmp_path, "--adapter", trained[0] / "out")[0]
    theirs = peft_loss(smollm2_dir, trained[0] / "out", rows)
    print(f"held-out loss: ours {mine:.6f}, PEFT {theirs:.6f}")
    assert abs(mine - theirs) < 1e-3


def test_bitsandbytes_gives_our_held_out_loss_on_nf4(trained, smollm2_dir, tmp_path):
    rows = held_out(smollm2_dir)
    mine = ours(smollm2_dir, rows, tmp_path, "--adapter", trained[0] / "out", "--base", "nf4")[0]
    theirs = peft_loss(smollm2_dir, trained[0] / "out", rows, through_nf4)
    print(f"held-out loss on NF4: ours {mine:.6f}, bitsandbytes {theirs:.6f}")
    assert abs(mine - theirs) < 1e-2


def test_alpaca_rows_on_an_nf4_base(spillway, smollm2_dir, tmp_path):
    write_rows(tmp_path / "rows.jsonl", 4, shape="alpaca")
    run = spillway("finetune", "--model", smollm2_dir, "--data", tmp_path / "rows.jsonl", "--out",
                   tmp_path / "out", "--steps", 3, "--rank", 4, "--device-mem", "400MiB")
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()
