"""The optimizers in Transformers' Trainer: the same losses as torch's AdamW, and an exact resume."""
import pytest

torch = pytest.importorskip("torch", reason="NO torch, the Trainer is not tested")
transformers = pytest.importorskip("transformers", reason="NO transformers, the Trainer is not "
                                   "tested")
pytest.importorskip("accelerate", reason="NO accelerate, the Trainer is not tested")

import spillway  # noqa: E402


def a_llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64))


def rows():
    """Sequences that count up from anywhere: learnt in a few steps."""
    made = [(torch.arange(24) + 7 * start) % 128 for start in range(64)]
    return [{"input_ids": row, "labels": row} for row in made]


class Losses(transformers.TrainerCallback):
    def __init__(self):
        self.values = []

    def on_log(self, args, state, control, logs=None, **unused):
        if "loss" in logs:
            self.values.append(logs["loss"])


def train(folder, optimizer, resume=None):
    losses = Losses()
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=20, per_device_train_batch_size=2, learning_rate=3e-3,
        lr_scheduler_type="cosine", warmup_steps=2, logging_steps=1, save_steps=10, use_cpu=True,
        report_to=[], disable_tqdm=True, seed=0)
    trainer = transformers.Trainer(a_llama(), arguments, train_dataset=rows(), callbacks=[losses],
                                   optimizer_cls_and_kwargs=optimizer)
    trainer.train(resume_from_checkpoint=resume)
    return losses.values, trainer


def test_losses_are_torchs_and_clipping_and_schedules_work(tmp_path):
    settings = dict(lr=3e-3, weight_decay=0.01)
    theirs, _ = train(tmp_path / "torch", (torch.optim.AdamW, settings))
    ours, trainer = train(tmp_path / "ours", (spillway.PagedAdamW32bit, settings))
    assert len(ours) == 20 and ours[-1] < ours[0]
    assert max(abs(a - b) / a for a, b in zip(theirs, ours)) < 1e-6
    assert isinstance(trainer.optimizer.optimizer, spillway.PagedAdamW32bit)


@pytest.mark.parametrize("name", ["PagedAdamW32bit", "PagedAdamW8bit"])
def test_a_resumed_run_has_the_same_losses(name, tmp_path):
    optimizer = (getattr(spillway, name), dict(lr=3e-3))
    whole, trainer = train(tmp_path, optimizer)
    resumed, again = train(tmp_path, optimizer, resume=str(tmp_path / "checkpoint-10"))
    assert resumed == whole[10:]
    assert all(torch.equal(p, q) for p, q in zip(trainer.model.parameters(),
                                                 again.model.parameters()))
