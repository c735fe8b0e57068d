"""TRL's SFTTrainer with a LoRA adapter: as the Trainer, by name.

    python examples/python/trl_sft.py
"""
import tempfile

import datasets
import peft
import spillway
import tokenizers
import transformers
import trl

spillway.patch()


def tiny_model_and_tokenizer():
    """Words w0 ... w199 and a model of their size: nothing is downloaded."""
    words = {"<pad>": 0, "<unk>": 1, "</s>": 2, **{f"w{i}": i + 3 for i in range(200)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, pad_token_id=0, eos_token_id=2))
    return model, transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>")


def main():
    transformers.set_seed(0)
    model, tokenizer = tiny_model_and_tokenizer()
    texts = [{"text": " ".join(f"w{row + i}" for i in range(12))} for row in range(180)]
    with tempfile.TemporaryDirectory() as folder:
        config = trl.SFTConfig(
            output_dir=folder, max_steps=24, per_device_train_batch_size=8, learning_rate=1e-2,
            optim="paged_adamw_8bit", optim_args="state_mem=25%", bf16=False, max_length=32,
            logging_steps=6, save_strategy="no", report_to=[], disable_tqdm=True)
        trainer = trl.SFTTrainer(
            model=model, args=config, train_dataset=datasets.Dataset.from_list(texts),
            processing_class=tokenizer,
            peft_config=peft.LoraConfig(r=64, target_modules="all-linear"))
        trainer.train()
        print(spillway.memory_summary())


if __name__ == "__main__":
    main()
