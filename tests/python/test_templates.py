"""Conversations by our built-in templates against transformers' apply_chat_template: ids, and which of
them are an answer."""
import json
import os
import random
import subprocess

import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402

from test_tokenizer import LLAMA3, QWEN, normalizers, split, trained  # noqa: E402
from tokens import ask, varied_texts  # noqa: E402

QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

# Each does what the model's own does for plain conversations; {% generation %} marks answers.
TURN = """
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{ m.content + '<|im_end|>' }}{% endif %}
{{- '\\n' }}"""
CHATML = "{%- for m in messages %}" + TURN + "{%- endfor %}"
CHATML_DEFAULT = """{%- if messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>system\\n""" + QWEN_SYSTEM + """<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}{% if not (loop.first and m.role == 'system') %}""" + TURN + """
{%- endif %}{% endfor %}"""
LLAMA3_CHAT = """{{- bos_token }}
{%- for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content | trim + '<|eot_id|>' }}{% endgeneration %}
{%- else %}{{ m.content | trim + '<|eot_id|>' }}{% endif %}
{%- endfor %}"""

CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA3_TOKENS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def conversations(seed, n, special):
    """Alternating turns, some after a system turn; contents of any kind, white space about them."""
    rng = random.Random(seed)
    texts = varied_texts(seed, 4 * n, special)
    for _ in range(n):
        roles = rng.choice([[], ["system"]]) + ["user", "assistant"] * rng.randrange(1, 4)
        yield [{"role": role, "content": rng.choice(texts)} for role in roles]


def make_tokenizer(tmp_path, template, special, **options):
    pattern = LLAMA3 if special is LLAMA3_TOKENS else QWEN
    fast = PreTrainedTokenizerFast(tokenizer_object=trained(split(pattern), special, **options),
                                   bos_token=special[0], eos_token=special[-1])
    fast.chat_template = template
    fast.save_pretrained(tmp_path)
    return fast


def ids_of(answer):
    return [int(word.rstrip("+")) for word in answer.split()]


def mask_of(answer):
    return [int(word.endswith("+")) for word in answer.split()]


def check_ids(tools_dir, folder, tokenizer, talks, *name):
    answers = ask(tools_dir, folder, [json.dumps(talk) for talk in talks], "--chat", *name)
    for talk, answer in zip(talks, answers):
        theirs = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=False)
        assert ids_of(answer) == list(theirs), talk
    return answers


def check_masks(tokenizer, talks, answers):
    counted = 0
    for talk, answer in zip(talks, answers):
        if any(turn["content"][:1].isspace() for turn in talk):
            continue  # a token of the head may reach into such an answer: we do not count it
        theirs = tokenizer.apply_chat_template(talk, tokenize=True, return_dict=True,
                                               return_assistant_tokens_mask=True)
        assert mask_of(answer) == list(theirs["assistant_masks"]), talk
        counted += sum(mask_of(answer))
    assert counted > 1000


@pytest.mark.parametrize("template, special, options", [
    (CHATML, CHATML_TOKENS, {}),
    (CHATML_DEFAULT, CHATML_TOKENS, {"normalizer": normalizers.NFC()}),
    (LLAMA3_CHAT, LLAMA3_TOKENS, {}),
], ids=["chatml", "chatml-default-system", "llama3"])
def test_built_in(tools_dir, tmp_path, template, special, options):
    tokenizer = make_tokenizer(tmp_path, template, special, **options)
    talks = list(conversations(11, 400, special))
    answers = check_ids(tools_dir, tmp_path, tokenizer, talks)
    check_masks(tokenizer, talks, answers)


def test_smollm2(tools_dir, smollm2_dir):
    """The model's own template, its default system turn included."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    talks = list(conversations(12, 400, CHATML_TOKENS))
    check_ids(tools_dir, smollm2_dir, tokenizer, talks)
    text = tokenizer.apply_chat_template(talks[0][-2:], tokenize=False)
    assert "named SmolLM" in text


def test_default_system_is_the_templates(tools_dir, tmp_path):
    """Told from the template's text, not from a list of models."""
    template = CHATML_DEFAULT.replace(QWEN_SYSTEM, "Answer in verse.")
    tokenizer = make_tokenizer(tmp_path, template, CHATML_TOKENS)
    check_ids(tools_dir, tmp_path, tokenizer, list(conversations(13, 50, CHATML_TOKENS)))


def test_by_name(tools_dir, tmp_path):
    """A template beyond ours is refused unless one is named; then that one is used."""
    tokenizer = make_tokenizer(tmp_path, CHATML + "{# <think> #}", CHATML_TOKENS)
    talks = list(conversations(14, 50, CHATML_TOKENS))
    done = subprocess.run([os.path.join(tools_dir, "tokens"), tmp_path, "--chat"], text=True,
                          capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and "--template chatml or llama3" in done.stderr
    check_ids(tools_dir, tmp_path, tokenizer, talks, "chatml")
    done = subprocess.run([os.path.join(tools_dir, "tokens"), tmp_path, "--chat", "llama3"], text=True,
                          capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and "<|start_header_id|>" in done.stderr
