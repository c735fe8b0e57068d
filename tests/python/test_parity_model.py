"""Loss, logits and every gradient against transformers + PEFT, in fp32, on the CPU.

Tiny random models of each family that the fine-tuner takes, and SmolLM2-135M-Instruct where the
fixture has it. model_probe (tests/tools) computes ours.
"""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE = pathlib.Path(os.environ.get("SPW_BUILD", ROOT / "build")) / "tests" / "tools" / "model_probe"
TOLERANCE = 1e-4  # of a tensor's largest element
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

SMALL = dict(vocab_size=101, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
             num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=512)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                   high_freq_factor=4.0, original_max_position_embeddings=64)
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=False),
    "llama-tied": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama3-rope": lambda: transformers.LlamaConfig(
        **SMALL, tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL, tie_word_embeddings=False),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True),
}


def random_model(name, path):
    """A random model in `path`; what starts as 0 or 1 (biases, norms) is made random too."""
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name]()).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.mul_(5.0)
    model.save_pretrained(path)
    return model


def random_rows(vocab, lengths, seed=5):
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        tokens = torch.randint(0, vocab, (length,), generator=generator)
        targets = torch.randint(0, vocab, (length,), generator=generator)
        targets[torch.rand(length, generator=generator) < 0.3] = -1
        targets[-1] = tokens[0]
        rows.append((tokens.tolist(), targets.tolist()))
    return rows


def add_adapter(model, path, seed=3):
    """Gives the model a LoRA whose A and B are both random, and writes it in PEFT's format."""
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=LINEAR, lora_dropout=0.0,
                             task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    model.save_pretrained(path)
    return model


def theirs(model, rows):
    """Mean loss over the targets, last-token logits, gradients by name."""
    n_targets = sum(t >= 0 for _, targets in rows for t in targets)
    loss_sum, logits = 0.0, []
    model.eval()
    for tokens, targets in rows:
        out = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
        loss = torch.nn.functional.cross_entropy(out, torch.tensor(targets), ignore_index=-1,
                                                 reduction="sum")
        (loss / n_targets).backward()
        loss_sum += loss.item()
        logits.append(out[-1].detach().numpy())
    gradients = {name.replace(".default", ""): parameter.grad.numpy()
                 for name, parameter in model.named_parameters() if parameter.grad is not None}
    return loss_sum / n_targets, logits, gradients


def ours(model, rows, out, *options):
    if not PROBE.exists():
        pytest.skip(f"{PROBE} is not built (set SPW_BUILD to the build folder)")
    rows_file = out / "rows.jsonl"
    rows_file.write_text("".join(json.dumps({"tokens": a, "targets": b}) + "\n" for a, b in rows))
    run = subprocess.run([PROBE, model, rows_file, out / "probe", *options], capture_output=True,
                         text=True)
    assert run.returncode == 0, run.stderr
    index = json.loads((out / "probe.json").read_text())
    floats = np.fromfile(out / "probe.bin", dtype=np.float32)
    tensors = {}
    for t in index["tensors"]:
        n = t["rows"] * t["cols"]
        tensors[t["name"]] = floats[t["offset"]:t["offset"] + n].reshape(t["rows"], t["cols"])
    logits = [tensors.pop(f"logits.{row}")[0] for row in range(len(rows))]
    return index["loss_sum"] / index["n_targets"], logits, tensors


def assert_same(mine, wanted, what, tolerance=TOLERANCE):
    wanted = np.asarray(wanted).reshape(mine.shape)
    worst, scale = np.abs(mine - wanted).max(), np.abs(wanted).max()
    assert scale > 0, f"{what}: nothing to compare"
    assert worst <= tolerance * scale, f"{what}: off by {worst:.3g}, largest {scale:.3g}"


def compare(mine, wanted):
    (loss, logits, gradients), (their_loss, their_logits, their_gradients) = mine, wanted
    assert abs(loss - their_loss) <= TOLERANCE * abs(their_loss)
    for row, (a, b) in enumerate(zip(logits, their_logits, strict=True)):
        assert_same(a, b, f"logits of row {row}")
    assert gradients.keys() == their_gradients.keys()
    for name, gradient in gradients.items():
        assert_same(gradient, their_gradients[name], name)


LENGTHS = [17, 1, 130, 64]


@pytest.mark.parametrize("name", MODELS)
def test_lora_gradients_equal_pefts(name, tmp_path):
    model = random_model(name, tmp_path / "model")
    rows = random_rows(SMALL["vocab_size"], LENGTHS)
    model = add_adapter(model, tmp_path / "adapter")
    mine = ours(tmp_path / "model", rows, tmp_path, "--adapter", tmp_path / "adapter")
    assert len(mine[2]) == 2 * len(LINEAR) * SMALL["num_hidden_layers"]
    compare(mine, theirs(model, rows))


@pytest.mark.parametrize("name", MODELS)
def test_full_gradients_equal_transformers(name, tmp_path):
    model = random_model(name, tmp_path / "model")
    rows = random_rows(SMALL["vocab_size"], LENGTHS)
    compare(ours(tmp_path / "model", rows, tmp_path, "--full"), theirs(model, rows))


def test_smollm2_lora_gradients_equal_pefts(smollm2_dir, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32,
                                                              attn_implementation="eager")
    rows = random_rows(model.config.vocab_size, [40, 90])
    model = add_adapter(model, tmp_path / "adapter")
    mine = ours(smollm2_dir, rows, tmp_path, "--adapter", tmp_path / "adapter")
    compare(mine, theirs(model, rows))
