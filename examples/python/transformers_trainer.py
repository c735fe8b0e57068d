"""The Hugging Face Trainer: patch() once, and the optimizer names you use already are Spillway's.

    python examples/python/transformers_trainer.py

`spillway-run python script.py` does the same for a script that is left as it is.
"""
import tempfile

import spillway
import torch
import transformers

spillway.patch()


def tiny_model():
    """Made from a configuration: nothing is downloaded."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4))


def counting(n=64, length=16):
    rows = [(5 * row + torch.arange(length)) % 250 for row in range(n)]
    return [{"input_ids": row, "labels": row} for row in rows]


def main():
    transformers.set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            output_dir=folder, max_steps=24, per_device_train_batch_size=8, learning_rate=3e-3,
            optim="paged_adamw_8bit",
            optim_args="state_mem=25%,occupancy=0.9",  # of Spillway; leave it out for the defaults
            logging_steps=6, save_strategy="no", report_to=[], disable_tqdm=True)
        trainer = transformers.Trainer(tiny_model(), args, train_dataset=counting())
        trainer.train()
        print(spillway.memory_summary())


if __name__ == "__main__":
    main()
