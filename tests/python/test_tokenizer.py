"""Our token ids against the tokenizers library's: the real SmolLM2 and small tokenizers of every kind
that is supported, each on 10,000 varied strings; pieces and NFC on every code point; decoding."""
import glob
import json
import os
import random

import pytest

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers  # noqa: E402
from tokenizers import decoders, pre_tokenizers, processors, trainers  # noqa: E402

from conftest import ROOT  # noqa: E402
from tokens import LLAMA3, QWEN, all_chars, ask, encode, varied_texts  # noqa: E402

N = 10_000


def split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2(prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=True)


def smollm():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2()])


def corpus():
    for path in sorted(glob.glob(os.path.join(ROOT, "src", "*", "*.c")))[:30]:
        with open(path, encoding="utf-8") as file:
            yield file.read()
    yield from varied_texts(7, 3000)


def trained(pre_tokenizer, special, **options):
    tokenizer = Tokenizer(models.BPE(**options.pop("model", {})))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if "normalizer" in options:
        tokenizer.normalizer = options.pop("normalizer")
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def make_gpt2(prefix):
    tokenizer = trained(gpt2(prefix), ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def make_smollm():
    return trained(smollm(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def make_digits():
    """Runs of digits are pieces."""
    return trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), gpt2()]),
                   ["<|endoftext|>"])


def make_llama3():
    """Pieces that are tokens as a whole though no merge leads there; a BOS before every text."""
    tokenizer = trained(split(LLAMA3), ["<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"])
    document = json.loads(tokenizer.to_str())
    vocab = document["model"]["vocab"]
    for word in ["ĠSpillway", "Ġoptimizer", "123", "''"]:
        vocab.setdefault(word, len(vocab))
    document["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="$A $B",
                                      special_tokens=[("<|begin_of_text|>", 0)])])
    return tokenizer


def make_qwen():
    return trained(split(QWEN), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                   normalizer=normalizers.NFC())


def make_flags(nfc):
    """Added tokens with every flag; one lies within another, one is no special token."""
    tokenizer = trained(gpt2(), ["<|x|>"], **({"normalizer": normalizers.NFC()} if nfc else {}))
    flags = {"normalized": [False, True], "lstrip": [False, True], "rstrip": [False, True],
             "single_word": [False, True]}
    names = iter("<a> <ab> <abc> [b] [bc] word wor @@ @@@ tok1 tok2 Éé <s> </s> sep mask".split())
    for normalized in flags["normalized"]:
        for lstrip in flags["lstrip"]:
            for rstrip in flags["rstrip"]:
                for single in flags["single_word"]:
                    token = AddedToken(next(names), normalized=normalized, lstrip=lstrip,
                                       rstrip=rstrip, single_word=single)
                    (tokenizer.add_special_tokens if lstrip else tokenizer.add_tokens)([token])
    return tokenizer


def make_gaps():
    """A vocabulary that lacks some bytes, as SmolLM2's does: they vanish; with an unknown token they
    become it, several in a row one."""
    document = json.loads(trained(gpt2(), ["<unk>"]).to_str())
    vocab = document["model"]["vocab"]
    missing = [letter for letter in ["ô", "ò", "q", "!", "Ą", "ª"] if letter in vocab]
    document["model"]["merges"] = [
        pair for pair in document["model"]["merges"]
        if not any(letter in "".join(pair) for letter in missing)]
    for token in [token for token in vocab if any(letter in token for letter in missing)]:
        del vocab[token]
    document["model"].update(unk_token="<unk>", fuse_unk=True)
    return Tokenizer.from_str(json.dumps(document))


KINDS = {
    "gpt2": lambda: make_gpt2(False),
    "gpt2-prefix": lambda: make_gpt2(True),
    "smollm": make_smollm,
    "digits": make_digits,
    "llama3": make_llama3,
    "qwen": make_qwen,
    "flags": lambda: make_flags(False),
    "flags-nfc": lambda: make_flags(True),
    "gaps": make_gaps,
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = KINDS[request.param]()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, tokenizer


def specials(tokenizer):
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]


def check_same(texts, ours, theirs):
    wrong = [i for i, text in enumerate(texts) if ours[i] != theirs[i]]
    assert not wrong, (f"{len(wrong)} of {len(texts)}: the shortest is "
                       f"{min(((texts[i], ours[i], theirs[i]) for i in wrong), key=lambda w: len(w[0]))}")


def check_ids(tools_dir, folder, tokenizer, seed):
    texts = varied_texts(seed, N, specials(tokenizer))
    for special in (False, True):
        theirs = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=special)]
        ours = encode(tools_dir, folder, texts, *(["--special"] if special else []))
        check_same(texts, ours, theirs)


def check_decoding(tools_dir, folder, tokenizer, seed):
    rng = random.Random(seed)
    ids = [e.ids for e in tokenizer.encode_batch(varied_texts(seed, 2000, specials(tokenizer)))]
    most = tokenizer.get_vocab_size() + 2
    ids += [[rng.randrange(most) for _ in range(rng.randrange(9))] for _ in range(2000)]
    answers = ask(tools_dir, folder, [" ".join(map(str, row)) for row in ids], "--decode")
    ours = [bytes.fromhex(answer).decode("utf-8", "replace") for answer in answers]
    check_same(ids, ours, tokenizer.decode_batch(ids, skip_special_tokens=True))


def test_ids_of_every_kind(tools_dir, kind):
    check_ids(tools_dir, *kind, seed=1)


def test_decoding_of_every_kind(tools_dir, kind):
    check_decoding(tools_dir, *kind, seed=2)


def test_merges_as_strings(tools_dir, tmp_path):
    """Older files write a merge as "a b"."""
    tokenizer = make_smollm()
    document = json.loads(tokenizer.to_str())
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    check_ids(tools_dir, tmp_path, tokenizer, seed=3)


def test_smollm2_ids(tools_dir, smollm2_dir):
    tokenizer = Tokenizer.from_file(os.path.join(smollm2_dir, "tokenizer.json"))
    check_ids(tools_dir, smollm2_dir, tokenizer, seed=4)
    check_decoding(tools_dir, smollm2_dir, tokenizer, seed=5)


def byte_chars():
    """{character: byte} of the byte map: the bytes that print, then the others from U+0100 on."""
    printable = [b for b in range(256) if 33 <= b < 127 or 161 <= b < 173 or 174 <= b < 256]
    others = [b for b in range(256) if b not in printable]
    return {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(others)}}


BYTE_OF = byte_chars()


def unmapped(piece):
    return bytes(BYTE_OF[c] for c in piece).decode("utf-8")


@pytest.mark.parametrize("name, pre_tokenizer", [
    ("gpt2", gpt2()), ("smollm", smollm()), ("llama3", split(LLAMA3)), ("qwen", split(QWEN))])
def test_pieces_of_every_character(tools_dir, tmp_path, name, pre_tokenizer):
    """The regular expressions by PCRE2 against Oniguruma, and their Unicode versions."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [f"a{c}b 1{c}2!{c} '{c} {c}{c}\n{c}" for c in all_chars()]
    theirs = [[unmapped(piece) for piece, _ in pre_tokenizer.pre_tokenize_str(t)] for t in texts]
    answers = ask(tools_dir, tmp_path, [json.dumps(text) for text in texts], "--pieces")
    ours = [json.loads(answer) for answer in answers]
    check_same(texts, ours, theirs)


def test_nfc_of_every_character(tools_dir, tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = gpt2()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [f"a{c}\u0301\u0327b{c}{c}\u0345\u093ce{c}" for c in all_chars()]
    theirs = [e.ids for e in tokenizer.encode_batch(texts)]
    check_same(texts, encode(tools_dir, tmp_path, texts), theirs)
