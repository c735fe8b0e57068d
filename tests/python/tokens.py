"""What the tokenizer tests share: asking build/tests/tools/tokens, and varied strings."""
import json
import random
import subprocess

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def ask(tools_dir, folder, lines, *mode):
    """One answer a line."""
    done = subprocess.run([f"{tools_dir}/tokens", str(folder), *mode], input="\n".join(lines) + "\n",
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split("\n")[:-1]
    assert len(answers) == len(lines)
    return answers


def encode(tools_dir, folder, texts, *mode):
    answers = ask(tools_dir, folder, [json.dumps(text) for text in texts], *mode)
    return [[int(word) for word in answer.split()] for answer in answers]


WORDS = ("the of Spillway optimizer paging GPU don't I'll WE'VE you're it's O'Neil naïve café "
         "résumé Straße ŉ ſ K K ﬀ ﬁ İstanbul ıI ΣΑΣ ςσ Привет мир こんにちは 世界 漢字かな "
         "안녕하세요 สวัสดี नमस्ते क्षि مرحبا بالعالم שלום ፊደል ខ្មែរ ไทย ქართული Ελληνικά "
         "1234567890 3.14159 0x1F ½ ² ٣٤٥ १२३ Ⅷ 一二三 42nd 1e-8 12:30 2026-12-01").split()
EMOJI = ["😀", "👩\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "👍🏽", "🇩🇪", "❤️", "1️⃣", "🫠", "🫨"]
SPACES = [" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", " \n ", "\x0b", "\x0c", "\x85", "\xa0",
          "\u180e", "\u1680", "\u2003", "\u200b", "\u2028", "\u2029", "\u202f", "\u3000", "\ufeff"]
MARKS = ["\u0301", "\u0308", "\u0327", "\u0323", "\u093c", "\u3099", "\u0345", "\u0653", "\u08d0",
         "\U00011930", "\u1100\u1161\u11a8", "e\u0301", "A\u030a", "\u212b", "\u1e9b\u0323"]
CODE = ["for (int i = 0; i < n; i++) {\n        sum += x[i];\n}\n", "def f(x):\n\treturn x ** 2\n",
        "#include <stdio.h>\n", "a->b.c::d", "=>", "!==", "&&", "//", "/* */", "\\n", "{{}}", "''", "\"\"",
        "<div class='x'>", "SELECT * FROM t;", "https://example.org/?q=1&r=%20", "__init__", "@a", "$HOME"]


def any_char(rng):
    while True:
        code = rng.randrange(rng.choice([0x80, 0x300, 0x3000, 0x10000, 0x20000, 0x110000]))
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def random_part(rng, special):
    kind = rng.randrange(12)
    if kind < 3:
        return rng.choice(["", " "]) + rng.choice(WORDS)
    if kind == 3:
        return rng.choice(EMOJI)
    if kind == 4:
        return "".join(rng.choices(SPACES, k=rng.randrange(1, 5)))
    if kind == 5:
        return rng.choice(MARKS) * rng.randrange(1, 3)
    if kind == 6:
        return rng.choice(CODE)
    if kind == 7:
        return rng.choice(special) if special else "<|none|>"
    if kind == 8:
        return "".join(rng.choices("0123456789", k=rng.randrange(1, 9)))
    if kind == 9:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(1, 12))).decode("utf-8", "replace")
    if kind == 10:
        return rng.choice(["'", "’", "I'"]) + rng.choice(["s", "T", "re", "VE", "m", "ll", "D", "ſ", "x"])
    return "".join(any_char(rng) for _ in range(rng.randrange(1, 6)))


def varied_texts(seed, n, special=()):
    rng = random.Random(seed)
    texts = ["", " ", "\n", "a", "\x00", "'s", "\ufeffa"] + list(special)
    while len(texts) < n:
        parts = [random_part(rng, special) for _ in range(rng.randrange(1, 14))]
        texts.append("".join(parts))
        if rng.random() < 0.02:
            texts.append(rng.choice("a \n!1é世") * rng.randrange(1, 3000))
    return texts[:n]


def all_chars():
    """Every code point, save for what of the large uniform ranges is left out."""
    for code in range(0x110000):
        uniform = 0x3500 <= code < 0xA000 or 0xAD00 <= code < 0xD700 or 0xE000 <= code < 0xF900 or \
            code >= 0x20100
        if (not uniform or code % 61 == 0 or 0x2E000 <= code < 0x32400 and code % 7 == 0) \
                and not 0xD800 <= code < 0xE000:
            yield chr(code)
