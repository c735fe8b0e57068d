"""The command: bad input ends in one line and leaves nothing; good input trains, the same bits
whatever was paged."""

import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def build_dir():
    return Path(os.environ.get("SPW_BUILD", REPOSITORY / "build"))


@pytest.fixture(scope="session")
def command(build_dir):
    path = build_dir / "spillway"
    if not path.exists():
        pytest.fail(f"{path} is not built")
    return str(path)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny random Llama with a byte-level BPE tokenizer, 0.12 M parameters."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("model")
    text = ["The river runs to the sea and the sea is wide."] * 20
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(text, trainer)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_rows(path, repeats):
    with open(path, "w") as file:
        for n in repeats:
            row = {"prompt": "The river ", "completion": "runs to the sea and the sea is wide. " * n}
            file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """Ten rows, one of them long."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    return write_rows(path, [1, 2, 1, 3, 1, 40, 1, 2, 2, 1])


def run(command, *arguments, **options):
    return subprocess.run(
        [command, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options
    )


def finetune(command, model, data, out, *arguments, **options):
    return run(
        command, "finetune", "--model", model, "--data", data, "--out", out, *arguments, **options
    )


def assert_refused(result, out, *words, status=1):
    """Exit status, one line on stderr with all the words, nothing left behind."""
    assert result.returncode == status, result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("spillway: ")
    for word in words:
        assert word in lines[0]
    assert not Path(out).exists()


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def copied(model, tmp_path):
    return Path(shutil.copytree(model, tmp_path / "model"))


# ------------------------------------------------------------------------------------------ usage


def test_without_a_command_says_how_to_use_it(command):
    result = run(command)
    assert result.returncode == 2
    assert "finetune" in result.stderr and "bench" in result.stderr


def test_an_unknown_command_names_those_there_are(command):
    result = run(command, "plan")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "plan" in result.stderr and "finetune, bench, ckpt" in result.stderr


def test_version(command):
    assert re.fullmatch(r"spillway \d+\.\d+\.\d+\n", run(command, "--version").stdout)


def test_help_lists_every_option_with_its_default(command):
    result = run(command, "finetune", "--help")
    assert result.returncode == 0 and result.stderr == ""
    options = """model data out log sample full adapter rank alpha dropout targets base steps epochs
        batch accum seq too-long template lr warmup schedule weight-decay clip seed device device-mem
        threads optim state paging state-mem occupancy page-size store host-mem save-every resume"""
    for option in options.split():
        assert f"--{option}" in result.stdout
    for default in ["[16]", "[2e-4]", "[0.03]", "[cosine]", "[8bit]", "[0.90]", "[1.0]", "MiB"]:
        assert default in result.stdout


USAGE = [
    (["--lr", "abc"], ["--lr", "abc"]),
    (["--lr", "0"], ["--lr", "above 0"]),
    (["--lr", "nan"], ["--lr"]),
    (["--state-mem", "120%"], ["--state-mem", "120%", "100%"]),
    (["--state-mem", "-1"], ["--state-mem"]),
    (["--rank", "0"], ["--rank", "1 to"]),
    (["--rank", "-3"], ["--rank", "-3"]),
    (["--steps", "1.5"], ["--steps", "1.5"]),
    (["--steps", "99999999999999999999"], ["--steps"]),
    (["--steps", "3", "--epochs", "1"], ["--steps", "--epochs"]),
    (["--warmup", "1.5"], ["--warmup", "0 to 1"]),
    (["--dropout", "1"], ["--dropout"]),
    (["--occupancy", "0"], ["--occupancy"]),
    (["--page-size", "100KiB"], ["--page-size", "power of two"]),
    (["--page-size", "32MiB"], ["--page-size", "16MiB"]),
    (["--device-mem", "lots"], ["--device-mem", "lots"]),
    (["--device", "tpu"], ["--device", "tpu", "cpu"]),
    (["--paging", "swap"], ["--paging", "swap", "copy"]),
    (["--paging", "unified"], ["--paging unified", "GPU"]),
    (["--store", "disk"], ["--store", "file:PATH"]),
    (["--store", "file:/tmp/x", "--paging", "mapped"], ["mapped", "ram"]),
    (["--optim", "lion"], ["lion", "not yet"]),
    (["--optim", "sgd"], ["sgd", "adamw"]),
    (["--state", "4bit"], ["4bit", "8bit"]),
    (["--schedule", "linear"], ["linear", "cosine"]),
    (["--too-long", "drop"], ["drop", "truncate"]),
    (["--template", "zephyr"], ["--template", "zephyr", "chatml"]),
    (["--targets", "q_proj,nothing"], ["--targets", "nothing"]),
    (["--base", "int8"], ["int8", "nf4"]),
    (["--full", "--rank", "8"], ["--full", "--rank"]),
    (["--full", "--base", "nf4"], ["--full", "nf4"]),
    (["--full", "--adapter", "somewhere"], ["--full", "--adapter"]),
    (["--adapter", "somewhere", "--rank", "8"], ["--adapter", "--rank"]),
    (["--save-every", "0"], ["--save-every", "1 to"]),
    (["--resume=yes"], ["--resume=yes", "takes no value"]),
    (["--trace", "x"], ["--trace", "not yet"]),
    (["--nonsense"], ["--nonsense", "unknown option"]),
    (["-xy"], ["-x", "unknown option"]),
    (["--full=yes"], ["--full=yes", "takes no value"]),
    (["--lr"], ["--lr", "value"]),
    (["stray"], ["stray"]),
]


@pytest.mark.parametrize("arguments,words", USAGE, ids=lambda value: " ".join(value))
def test_a_bad_option_is_a_usage_error(command, tmp_path, out, arguments, words):
    result = finetune(command, tmp_path, tmp_path / "rows", out, *arguments)
    assert_refused(result, out, *words, status=2)


@pytest.mark.parametrize("missing", ["model", "data", "out"])
def test_a_missing_option_is_named(command, out, missing):
    given = {"model": "m", "data": "d", "out": out}
    arguments = [word for name in given if name != missing for word in (f"--{name}", given[name])]
    assert_refused(run(command, "finetune", *arguments), out, f"--{missing}", status=2)


def test_a_gpu_names_the_package_to_come(command, model, rows, out):
    result = finetune(command, model, rows, out, "--device", "cuda:1")
    assert_refused(result, out, "--device cuda:1", "--device cpu", "Python package spillway")


# -------------------------------------------------------------------------------------- bad input


def test_a_truncated_model_file_is_named(command, copied, rows, out):
    path = copied / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert_refused(finetune(command, copied, rows, out), out, "model.safetensors")


def lie(path, change):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


NORM = "model.norm.weight"
LIES = {
    "offsets": lambda h: h[NORM].update(data_offsets=[0, 1 << 40]),
    "shape": lambda h: h[NORM].update(shape=[65]),
    "dtype": lambda h: h[NORM].update(dtype="F13"),
    "gone": lambda h: h.pop(NORM),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_lying_model_file_is_named(command, copied, rows, out, kind):
    lie(copied / "model.safetensors", LIES[kind])
    assert_refused(finetune(command, copied, rows, out), out, "safetensors")


def test_a_header_of_absurd_length_is_named(command, copied, rows, out):
    path = copied / "model.safetensors"
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    assert_refused(finetune(command, copied, rows, out), out, "model.safetensors")


def test_a_missing_model_is_named(command, tmp_path, rows, out):
    assert_refused(finetune(command, tmp_path / "none", rows, out), out, "config.json")


def test_a_model_without_weights_is_named(command, copied, rows, out):
    (copied / "model.safetensors").unlink()
    assert_refused(finetune(command, copied, rows, out), out, "safetensors")


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("part", ["model", "pre_tokenizer"])
def test_a_tokenizer_with_a_part_missing_is_named(command, copied, rows, out, part):
    edit(copied / "tokenizer.json", lambda c: c.pop(part))
    assert_refused(finetune(command, copied, rows, out), out, "tokenizer.json")


def test_a_tokenizer_of_another_kind_is_named(command, copied, rows, out):
    edit(copied / "tokenizer.json", lambda c: c["model"].update(type="Unigram"))
    assert_refused(finetune(command, copied, rows, out), out, "tokenizer.json", "Unigram")


def test_a_tokenizer_of_another_model_is_told(command, copied, rows, out):
    edit(copied / "config.json", lambda c: c.update(vocab_size=100))
    result = finetune(command, copied, rows, out)
    assert_refused(result, out)


def test_a_model_of_another_family_is_named(command, copied, rows, out):
    edit(copied / "config.json", lambda c: c.update(model_type="gpt2"))
    assert_refused(finetune(command, copied, rows, out), out, "config.json", "gpt2")


@pytest.mark.parametrize(
    "line", ["not json", '{"prompt": "a"}', '{"text": 5}', "[1]"], ids=["syntax", "field", "type", "kind"]
)
def test_a_bad_row_is_named_by_its_line(command, model, tmp_path, out, line):
    path = tmp_path / "rows.jsonl"
    good = json.dumps({"prompt": "a", "completion": "b"})
    path.write_text(f"{good}\n{good}\n{line}\n{good}\n")
    assert_refused(finetune(command, model, path, out), out, "rows.jsonl", "3")


def test_no_usable_row_is_told(command, model, tmp_path, out):
    path = tmp_path / "rows.jsonl"
    path.write_text("")
    assert_refused(finetune(command, model, path, out), out, "rows.jsonl", "no usable row")


def test_an_adapter_that_is_none_is_named(command, model, rows, out, tmp_path):
    arguments = ["--base", "fp32", "--adapter", tmp_path / "adapter"]
    assert_refused(finetune(command, model, rows, out, *arguments), out, "adapter_config.json")
    first = finetune(command, model, rows, tmp_path / "adapter", "--base", "fp32", "--steps", 1)
    assert first.returncode == 0, first.stderr
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    assert_refused(finetune(command, model, rows, out, *arguments), out, "adapter_model.safetensors")


@pytest.mark.parametrize("base", ["fp32", "bf16", "nf4"])
def test_every_base_trains_under_a_cap_with_the_state_on_disk(command, model, rows, tmp_path, base):
    logs = []
    for options in [["--device-mem", "8MiB", "--state-mem", "0%", "--store",
                     f"file:{tmp_path / 'store'}"], ["--paging", "off"]]:
        logs.append(tmp_path / f"log{len(logs)}")
        result = finetune(command, model, rows, tmp_path / f"out{len(logs)}", "--base", base,
                          "--steps", 5, *options, "--log", logs[-1])
        assert result.returncode == 0, result.stderr
    assert losses(logs[0]) == losses(logs[1])


def test_a_host_too_small_for_the_state_says_what_helps_before_training(command, model, rows, out):
    result = finetune(command, model, rows, out, "--base", "fp32", "--host-mem", "64KiB")
    assert_refused(result, out, "--host-mem", "--store file:PATH")
    assert "training" not in result.stdout and "step" not in result.stdout


def test_a_disk_too_small_for_the_state_is_found_before_training(command, model, rows, out,
                                                                  tmp_path):
    """The limit on file sizes stands in for the disk."""
    result = finetune(
        command, model, rows, out, "--base", "fp32", "--store", f"file:{tmp_path / 'store'}",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)),
    )
    assert_refused(result, out, str(tmp_path / "store"), "optimizer state", "ulimit -f")
    assert "training" not in result.stdout and "step" not in result.stdout


def test_long_rows_are_cut_or_left_out_and_counted_before_step_1(command, model, rows, tmp_path):
    common = ["--base", "fp32", "--seq", 32]
    cut = finetune(command, model, rows, tmp_path / "a", *common)
    assert re.search(r"^\d+ rows are cut to --seq 32$(.|\n)*^step 1/10 ", cut.stdout, re.M)
    skipped = finetune(command, model, rows, tmp_path / "b", *common, "--too-long", "skip")
    assert re.search(r"^\d+ rows are longer than --seq and left out$", skipped.stdout, re.M)
    assert "step 1/10" not in skipped.stdout


def test_a_row_past_seq_is_an_error_on_request(command, model, rows, out):
    result = finetune(command, model, rows, out, "--seq", 32, "--too-long", "error")
    assert_refused(result, out, "rows.jsonl", "32")


def test_a_seq_past_the_models_positions_is_told(command, model, rows, out):
    result = finetune(command, model, rows, out, "--seq", 4096)
    assert_refused(result, out, "--seq 4096", "1024")


def test_an_output_below_a_file_is_refused(command, model, rows, tmp_path):
    (tmp_path / "file").write_text("x")
    result = finetune(command, model, rows, tmp_path / "file" / "out")
    assert_refused(result, tmp_path / "file" / "out", "--out", "file/out")
    assert finetune(command, model, rows, tmp_path / "file").returncode == 1
    assert (tmp_path / "file").read_text() == "x"


def test_an_output_that_holds_a_result_is_not_overwritten(command, model, rows, out):
    out.mkdir()
    (out / "adapter_model.safetensors").write_text("mine")
    result = finetune(command, model, rows, out)
    assert result.returncode == 1 and "holds a result already" in result.stderr
    assert os.listdir(out) == ["adapter_model.safetensors"]
    assert (out / "adapter_model.safetensors").read_text() == "mine"


def test_an_unwritable_log_is_told_first(command, model, rows, out, tmp_path):
    result = finetune(command, model, rows, out, "--log", tmp_path / "no" / "log")
    assert_refused(result, out, "--log")
    assert result.stdout == ""


def test_a_full_disk_under_the_log_is_told(command, model, rows, out):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    result = finetune(command, model, rows, out, "--base", "fp32", "--log", "/dev/full")
    assert_refused(result, out, "--log /dev/full", "No space left")


@pytest.mark.parametrize("full", [False, True], ids=["adapter", "full"])
def test_a_full_disk_under_the_result_leaves_nothing(command, model, rows, out, full):
    """The limit on file sizes stands in for the disk: the write fails half way."""
    result = finetune(
        command, model, rows, out, *(["--full"] if full else ["--base", "fp32"]), "--steps", 1,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)),
    )
    assert_refused(result, out, "--out", "not written")


def test_a_store_file_that_is_there_is_not_touched(command, model, rows, out, tmp_path):
    (tmp_path / "store").write_text("mine")
    result = finetune(command, model, rows, out, "--device-mem", "64MiB", "--store",
                      f"file:{tmp_path / 'store'}")
    assert_refused(result, out, "store")
    assert (tmp_path / "store").read_text() == "mine"


@pytest.mark.parametrize("full", [False, True], ids=["adapter", "full"])
def test_a_device_too_small_for_the_weights_says_what_is_needed(command, model, rows, out, full):
    result = finetune(command, model, rows, out, "--device-mem", "64KiB", *(["--full"] if full else []))
    assert_refused(result, out, "--device-mem 64.0 KiB", "weights and gradients take", "more than")


# --------------------------------------------------------------------------------------- training


def losses(path):
    return [json.loads(line)["loss_hex"] for line in Path(path).read_text().splitlines()]


LOG_KEYS = """step loss loss_hex tokens lr grad_norm ms device_bytes resident_bytes bytes_in bytes_out
    bytes_cleaned reclaims""".split()


def test_an_adapter_is_trained_and_peft_loads_it(command, model, rows, out, tmp_path):
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    log = tmp_path / "log.jsonl"
    result = finetune(command, model, rows, out, "--base", "fp32", "--epochs", 3, "--lr", "1e-2",
                      "--log", log, "--sample", "The river ")
    assert result.returncode == 0 and result.stderr == "", result.stderr
    assert "before training: The river |" in result.stdout
    assert "after training: The river |" in result.stdout
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 31))
    assert all(list(line) == LOG_KEYS for line in lines)
    assert all(float.fromhex(line["loss_hex"]) == line["loss"] for line in lines)
    assert lines[-1]["loss"] < 0.9 * lines[0]["loss"]
    assert sorted(os.listdir(out)) == ["adapter_config.json", "adapter_model.safetensors"]

    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tuned = peft.PeftModel.from_pretrained(base, out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    ids = tokenizer("The river runs to the sea", return_tensors="pt").input_ids
    with torch.no_grad():
        with_adapter = tuned(ids, labels=ids).loss
        with tuned.disable_adapter():
            without = tuned(ids, labels=ids).loss
    assert with_adapter < without


def test_an_adapter_is_a_place_to_start(command, model, rows, tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    common = ["--base", "fp32", "--epochs", 3, "--lr", "1e-2"]
    assert finetune(command, model, rows, tmp_path / "a", *common, "--log", first).returncode == 0
    result = finetune(command, model, rows, tmp_path / "b", *common, "--adapter", tmp_path / "a",
                      "--log", second)
    assert result.returncode == 0, result.stderr
    starts = [json.loads(path.read_text().splitlines()[0])["loss"] for path in (first, second)]
    assert starts[1] < starts[0]


def test_the_same_seed_gives_the_same_run(command, model, rows, tmp_path):
    logs = [tmp_path / f"{i}.jsonl" for i in range(3)]
    for i, log in enumerate(logs):
        result = finetune(command, model, rows, tmp_path / f"out{i}", "--base", "fp32", "--dropout",
                          "0.1", "--seed", i // 2, "--log", log)
        assert result.returncode == 0, result.stderr
    assert losses(logs[0]) == losses(logs[1])
    assert losses(logs[0]) != losses(logs[2])


def test_keeping_activations_changes_no_bit(command, model, rows, tmp_path):
    logs = [tmp_path / f"{keep}.jsonl" for keep in ("0", "64KiB", "1GiB")]
    for log in logs:
        result = finetune(command, model, rows, tmp_path / f"out-{log.stem}", "--base", "fp32",
                          "--keep", log.stem, "--log", log)
        assert result.returncode == 0, result.stderr
    assert losses(logs[0]) == losses(logs[1]) == losses(logs[2])


FULL = ["--full", "--epochs", 2, "--lr", "1e-3", "--accum", 2, "--threads", 2]


@pytest.fixture(scope="session")
def unpaged(command, model, rows, tmp_path_factory):
    logs = {}
    for state in ["32bit", "8bit"]:
        folder = tmp_path_factory.mktemp("unpaged")
        result = finetune(command, model, rows, folder / "out", *FULL, "--state", state,
                          "--paging", "off", "--log", folder / "log")
        assert result.returncode == 0, result.stderr
        logs[state] = folder
    return logs


def least_cap(passes):
    """The least --device-mem, to 32 KiB, that lets a run through: under it the state must give way
    to the long row, whatever the trainer's activations are."""
    low, high = 0, 16 * 32  # in 32 KiB
    assert passes(f"{high * 32}KiB")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(f"{middle * 32}KiB") else (middle, high)
    return f"{high * 32}KiB"


@pytest.mark.parametrize("state", ["32bit", "8bit"])
@pytest.mark.parametrize("store", ["ram", "file"])
def test_under_the_least_cap_state_gives_way_and_nothing_changes(
    command, model, rows, unpaged, tmp_path, store, state
):
    place = f"file:{tmp_path / 'store'}" if store == "file" else "ram"

    def under(cap, *way):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        return finetune(command, model, rows, tmp_path / "out", *FULL, "--state", state,
                        "--device-mem", cap, *way, "--log", tmp_path / "log")

    cap = least_cap(lambda cap: under(cap, "--store", place).returncode == 0)
    assert under(cap, "--store", place).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert losses(tmp_path / "log") == losses(unpaged[state] / "log")
    assert sum(line["reclaims"] for line in lines) > 0
    assert sum(line["bytes_out"] for line in lines) > 0
    assert not (tmp_path / "store").exists()
    if state == "32bit" and store == "ram":  # what the paged run saves
        stopped = under(cap, "--paging", "off")
        assert stopped.returncode == 1 and "out of device memory" in stopped.stderr


WAYS = {
    "copy small pages": ["--device-mem", "8MiB", "--page-size", "64KiB", "--state-mem", "25%"],
    "copy nothing resident": ["--device-mem", "8MiB", "--state-mem", "0%"],
    "copy a size resident": ["--device-mem", "8MiB", "--state-mem", "200KiB"],
    "copy to a file": ["--device-mem", "8MiB", "--state-mem", "50%", "--store", "file:{}/store"],
    "mapped": ["--paging", "mapped"],
    "mapped by default": [],
}


@pytest.mark.parametrize("state", ["32bit", "8bit"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_learned_does_not_depend_on_what_was_paged(
    command, model, rows, unpaged, tmp_path, way, state
):
    options = [word.format(tmp_path) for word in WAYS[way]]
    result = finetune(command, model, rows, tmp_path / "out", *FULL, "--state", state, *options,
                      "--log", tmp_path / "log")
    assert result.returncode == 0, result.stderr
    assert losses(tmp_path / "log") == losses(unpaged[state] / "log")
    files = [d / "out" / "model.safetensors" for d in (tmp_path, unpaged[state])]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_transformers_loads_the_full_model(model, unpaged):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    out = unpaged["32bit"] / "out"
    tuned = transformers.AutoModelForCausalLM.from_pretrained(out)
    base = transformers.AutoModelForCausalLM.from_pretrained(model)
    assert not torch.equal(tuned.model.norm.weight, base.model.norm.weight)
    assert transformers.AutoTokenizer.from_pretrained(out)("a").input_ids


def test_without_paging_the_long_sample_ends_the_run(command, model, tmp_path, out):
    """Short rows before it place the state; the message says what would help."""
    data = write_rows(tmp_path / "rows.jsonl", [1] * 6 + [70])
    arguments = ["--full", "--device-mem", "3MiB", "--epochs", 1, "--state", "32bit"]
    for seed in range(20):  # to an order in which the long row is not the first
        result = finetune(command, model, data, out, *arguments, "--paging", "off", "--seed", seed)
        assert result.returncode == 1
        if "step 1," not in result.stderr:
            break
    assert_refused(result, out, "step", "rows.jsonl:7", "asked for", "`--paging copy` lets",
                   "of optimizer state give way")


def test_an_interrupt_finishes_the_step_and_says_what_is_lost(command, model, rows, out):
    process = subprocess.Popen(
        [command, "finetune", "--model", model, "--data", rows, "--out", out, "--full",
         "--epochs", "10000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    for line in process.stdout:
        if line.startswith("step 1/"):
            break
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"^spillway: stopped after step \d+ of 100000: .*lost.*$", stderr)
    assert stderr.count("\n") == 1
    assert not out.exists()


def test_a_diverging_run_is_ended(command, copied, rows, out):
    """A weight that is not a number: no loss ever is one."""
    safetensors = pytest.importorskip("safetensors.torch")
    path = copied / "model.safetensors"
    tensors = safetensors.load_file(path)
    tensors[NORM][0] = float("nan")
    safetensors.save_file(tensors, path, metadata={"format": "pt"})
    result = finetune(command, copied, rows, out, "--base", "fp32", "--epochs", 2)
    assert_refused(result, out, "step 10", "not finite")
    assert result.stdout.count("step skipped") == 10


def test_the_example_trainer_survives_its_spike(build_dir):
    done = subprocess.run([build_dir / "examples" / "example_adamw"], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    resident = {line: int(re.search(r"device:\s*(\d+) of 2048 KiB", line)[1]) for line in lines}
    there = [line for line in lines if "3 MiB are there" in line]
    assert len(there) == 1 and resident[there[0]] < 2048
    assert resident[lines[-1]] == 2048
    losses = [float(re.search(r"loss\s+([\d.]+)", line)[1]) for line in lines]
    assert losses[-1] < losses[0] / 4


def test_a_terminal_sees_one_live_line_that_fits_it(command, model, rows, tmp_path):
    """On a terminal of 60 columns every step redraws one line; nothing of it wraps."""
    import fcntl
    import pty
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = subprocess.Popen(
        [command, "finetune", "--model", model, "--data", rows, "--out", tmp_path / "out",
         "--steps", "5", "--base", "fp32"], stdout=follower, stderr=subprocess.PIPE)
    os.close(follower)
    screen = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # the terminal is closed: Linux says EIO
            break
        if not chunk:
            break
        screen += chunk
    assert process.wait(timeout=60) == 0, process.stderr.read()
    os.close(leader)
    drawn = [part.split("\r\n")[0] for part in screen.decode().split("\r\x1b[K")[1:]]
    assert [re.match(r"step (\d)/5  loss ", line)[1] for line in drawn] == list("12345")
    assert all(len(line) < 60 for line in drawn)
