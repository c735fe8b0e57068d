"""Checkpoints of `spillway finetune`: a run that is stopped, killed or damaged and resumed has the
losses and the adapter of one that never stopped."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from test_cli import build_dir, command, model, rows, write_rows  # noqa: F401 (fixtures)

ADAPTER = "adapter_model.safetensors"
STEPS = 12
LORA = ["--rank", 4, "--dropout", 0.1, "--batch", 2, "--lr", "1e-3", "--threads", 1,
        "--steps", STEPS, "--weight-decay", 0.01]
FULL = ["--full", "--batch", 2, "--lr", "1e-3", "--threads", 1, "--steps", STEPS]
WAYS = {
    "as it was": [],
    "nothing resident, small pages": ["--device-mem", "16MiB", "--state-mem", "0%",
                                      "--page-size", "64KiB"],
    "a file": ["--device-mem", "16MiB", "--state-mem", "50%", "--store", "file:{}/store"],
    "other pages": ["--device-mem", "16MiB", "--page-size", "256KiB"],
    "mapped": ["--paging", "mapped"],
}


def finetune(command, model, data, out, *arguments):
    return subprocess.run([command, "finetune", "--model", model, "--data", data, "--out", out,
                           *map(str, arguments)], capture_output=True, text=True, timeout=120)


def done(result):
    assert result.returncode == 0, result.stderr
    return result


def lines(log):
    return [json.loads(line) for line in Path(log).read_text().splitlines()]


def losses(log):
    return [(line["step"], line["loss_hex"]) for line in lines(log)]


def checkpoints(out):
    return sorted(int(entry.name.split("-")[1]) for entry in Path(out).glob("checkpoint-*"))


def hidden(out):
    return [entry for entry in os.listdir(out) if entry.startswith(".")]


class Run:
    """One training run, asked again and again with the same options."""

    def __init__(self, command, model, data, folder, options, save_every=4):
        self.out, self.log = folder / "out", folder / "log"
        self.asked = (command, model, data, self.out, *options, "--log", self.log)
        self.every = ["--save-every", save_every]

    def go(self, *arguments):
        return finetune(*self.asked, *self.every, *arguments)

    def die(self, *arguments):
        """Leaves what a kill after the last step leaves: log, checkpoints 8 and 12, no result."""
        done(self.go(*arguments))
        for entry in self.out.iterdir():
            if entry.is_file():
                entry.unlink()
        assert checkpoints(self.out) == [8, 12]

    def die_early(self, *arguments):
        """The same, before checkpoint 12 was complete: the log goes further."""
        self.die(*arguments)
        shutil.rmtree(self.out / "checkpoint-12")


@pytest.fixture(scope="module")
def straight(command, model, rows, tmp_path_factory):
    """Runs that never stopped, by their options; without checkpoints, so that those change nothing."""
    made = {}

    def of(*options):
        if options not in made:
            folder = tmp_path_factory.mktemp("straight")
            done(finetune(command, model, rows, folder / "out", *options, "--log", folder / "log"))
            made[options] = folder
        return made[options]

    return of


@pytest.fixture
def lora(command, model, rows, tmp_path):
    return Run(command, model, rows, tmp_path, LORA)


def assert_same(run, straight, name=ADAPTER):
    assert losses(run.log) == losses(straight / "log")
    assert (run.out / name).read_bytes() == (straight / "out" / name).read_bytes()
    assert hidden(run.out) == []


# ----------------------------------------------------------------------------------------- saving


def test_a_run_that_saves_computes_the_same_and_keeps_two(lora, straight):
    done(lora.go())
    assert_same(lora, straight(*LORA))
    assert checkpoints(lora.out) == [8, 12]


def test_a_checkpoint_has_its_parts_and_peft_s_files(lora):
    done(lora.go())
    folder = lora.out / "checkpoint-8"
    assert sorted(os.listdir(folder)) == ["adapter_config.json", ADAPTER, "optimizer.safetensors",
                                          "spillway.json"]
    document = json.loads((folder / "spillway.json").read_text())
    assert document["step"] == 8 and document["schedule"]["steps"] == "12"
    assert document["data"]["epoch"] == "1" and document["data"]["row"] == "6"
    assert document["random"]["seed"] == "0"
    assert set(document["files"]) == {"adapter_config.json", ADAPTER, "optimizer.safetensors"}


def test_anyone_s_safetensors_opens_the_optimizer_s_file(lora):
    safetensors = pytest.importorskip("safetensors.torch")
    from safetensors import safe_open
    done(lora.go("--state", "8bit"))
    path = lora.out / "checkpoint-12" / "optimizer.safetensors"
    tensors = safetensors.load_file(path)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    assert tensors[f"{name}.m"].abs().sum() > 0
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "spillway.optimizer" and metadata[f"step.{name}"] == "12"


# --------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("state", ["8bit", "32bit"])
@pytest.mark.parametrize("way", WAYS)
def test_a_killed_run_goes_on_under_another_paging(
    command, model, rows, tmp_path, straight, way, state
):
    run = Run(command, model, rows, tmp_path, [*LORA, "--state", state])
    run.die_early()
    resumed = done(run.go("--resume", *[word.format(tmp_path) for word in WAYS[way]]))
    assert "resuming after step 8" in resumed.stdout
    assert_same(run, straight(*LORA, "--state", state))


@pytest.mark.parametrize("state", ["8bit", "32bit"])
def test_a_full_run_goes_on(command, model, rows, tmp_path, straight, state):
    options = [*FULL, "--state", state]
    run = Run(command, model, rows, tmp_path, options)
    run.die_early()
    done(run.go("--resume", "--device-mem", "16MiB", "--state-mem", "25%"))
    assert_same(run, straight(*options), "model.safetensors")


def test_a_full_run_in_bf16_goes_on(command, model, rows, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    half = tmp_path / "model"
    shutil.copytree(model, half)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    loaded.save_pretrained(half)
    folders = [tmp_path / "straight", tmp_path / "stopped"]
    for folder in folders:
        folder.mkdir()
    runs = [Run(command, half, rows, folder, FULL) for folder in folders]
    done(runs[0].go())
    runs[1].die_early()
    done(runs[1].go("--resume"))
    assert_same(runs[1], folders[0], "model.safetensors")


def test_a_run_from_an_adapter_goes_on(command, model, rows, tmp_path):
    first = tmp_path / "first"
    done(finetune(command, model, rows, first, *LORA))
    folders = [tmp_path / "straight", tmp_path / "stopped"]
    for folder in folders:
        folder.mkdir()
    options = ["--adapter", first, "--batch", 2, "--threads", 1, "--steps", STEPS]
    runs = [Run(command, model, rows, folder, options) for folder in folders]
    done(runs[0].go())
    runs[1].die_early()
    done(runs[1].go("--resume"))
    assert_same(runs[1], folders[0])


def test_skipped_steps_in_a_row_are_counted_over_a_resume(command, model, rows, tmp_path):
    """A run whose every loss is not a number ends after ten steps, resumed in between or not."""
    safetensors = pytest.importorskip("safetensors.torch")
    bad = Path(shutil.copytree(model, tmp_path / "model"))
    tensors = safetensors.load_file(bad / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    safetensors.save_file(tensors, bad / "model.safetensors", metadata={"format": "pt"})
    run = Run(command, bad, rows, tmp_path, ["--base", "fp32", "--steps", 20])
    for _ in range(2):
        result = run.go("--resume")
        assert result.returncode == 1 and "step 10: " in result.stderr, result.stderr
    assert checkpoints(run.out) == [4, 8] and result.stdout.count("step skipped") == 2


def interrupted(asked, log):
    """Sends SIGINT when the log has two lines."""
    command, model, data, out, *rest = asked
    process = subprocess.Popen([command, "finetune", "--model", model, "--data", data, "--out", out,
                                *map(str, rest)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= 2):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1, stderr
    return stderr


def test_an_interrupt_saves_and_resume_goes_on(command, model, rows, tmp_path, straight):
    options = [*LORA, "--steps", 60]
    run = Run(command, model, rows, tmp_path, options, save_every=1000)
    stderr = interrupted([*run.asked, *run.every], run.log)
    saved = checkpoints(run.out)
    assert saved == [len(lines(run.log))]
    assert f"checkpoint-{saved[0]}" in stderr and stderr.count("\n") == 1
    done(run.go("--resume"))
    assert_same(run, straight(*options))


def test_an_interrupt_without_save_every_says_what_is_left(command, model, rows, tmp_path):
    """A resumed run that saves no more: the checkpoint that it began with stays."""
    options = [*LORA, "--steps", 1000]
    run = Run(command, model, rows, tmp_path, options, save_every=1000)
    interrupted([*run.asked, *run.every], run.log)
    first = checkpoints(run.out)
    run.log.unlink()
    stderr = interrupted([*run.asked, "--resume"], run.log)
    assert f"checkpoint-{first[0]}" in stderr and checkpoints(run.out) == first


def test_the_log_is_cut_back_to_the_checkpoint_and_gone_on_with(lora, straight):
    lora.die_early()
    text = lora.log.read_text().splitlines(keepends=True)
    assert len(text) == 12
    lora.log.write_text("".join(text[:10]) + text[10][:20])  # the last line was cut by the kill
    done(lora.go("--resume"))
    assert lora.log.read_text().splitlines(keepends=True)[:8] == text[:8]
    assert_same(lora, straight(*LORA))


def test_a_run_that_only_lacks_its_result_takes_no_step(lora, straight):
    lora.die()
    text = lora.log.read_text()
    done(lora.go("--resume"))
    assert lora.log.read_text() == text
    assert_same(lora, straight(*LORA))


def test_a_complete_run_is_left_alone(lora):
    done(lora.go())
    before = {path: path.read_bytes() for path in lora.out.rglob("*") if path.is_file()}
    again = done(lora.go("--resume"))
    assert "complete" in again.stdout
    assert before == {path: path.read_bytes() for path in lora.out.rglob("*") if path.is_file()}
    assert len(lines(lora.log)) == STEPS


def test_without_a_checkpoint_it_says_so_and_starts_afresh(lora, straight):
    result = done(lora.go("--resume"))
    assert "no valid checkpoint, starting afresh" in result.stdout
    assert_same(lora, straight(*LORA))


def test_checkpoints_are_not_overwritten_by_another_run(lora):
    lora.die()
    result = lora.go()
    assert result.returncode == 1 and "--resume" in result.stderr
    assert checkpoints(lora.out) == [8, 12]


# ------------------------------------------------------------------------------------- other runs


CHANGES = [
    ("lr", ["--lr", "2e-3"]), ("seed", ["--seed", "5"]), ("steps", ["--steps", "13"]),
    ("batch", ["--batch", "1"]), ("rank", ["--rank", "8"]), ("state", ["--state", "32bit"]),
    ("dropout", ["--dropout", "0"]), ("clip", ["--clip", "0.5"]), ("base", ["--base", "fp32"]),
    ("targets", ["--targets", "q_proj"]), ("schedule", ["--schedule", "constant"]),
]


def test_another_run_s_options_are_refused_by_name(lora):
    lora.die()
    before = lora.log.read_text()
    for name, change in CHANGES:
        result = lora.go("--resume", *change)
        assert result.returncode == 1
        assert f"--{name}: is " in result.stderr and "checkpoint-12" in result.stderr
        assert result.stderr.count("\n") == 1
    assert lora.log.read_text() == before and checkpoints(lora.out) == [8, 12]


def test_other_data_is_refused(lora, tmp_path):
    lora.die()
    data = write_rows(tmp_path / "other.jsonl", [1, 2, 1, 3, 1, 40, 1, 2, 2, 2])
    asked = list(lora.asked)
    asked[2] = data
    result = finetune(*asked, *lora.every, "--resume")
    assert result.returncode == 1 and "--data" in result.stderr
    assert "checkpoint-12" in result.stderr


def test_another_model_is_refused(lora, model, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    lora.die()
    other = Path(shutil.copytree(model, tmp_path / "model"))
    tensors = safetensors.load_file(other / "model.safetensors")
    tensors["model.norm.weight"][3] += 1
    safetensors.save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    asked = list(lora.asked)
    asked[1] = other
    result = finetune(*asked, *lora.every, "--resume")
    assert result.returncode == 1 and "--model" in result.stderr
    assert "checkpoint-12" in result.stderr


# ---------------------------------------------------------------------------------------- damage


def flip(path, rng):
    raw = bytearray(path.read_bytes())
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)


DAMAGE = {
    "a flipped byte of the adapter": lambda c, rng: flip(c / ADAPTER, rng),
    "a flipped byte of the optimizer": lambda c, rng: flip(c / "optimizer.safetensors", rng),
    "a cut optimizer": lambda c, rng: os.truncate(c / "optimizer.safetensors", 5000),
    "no adapter": lambda c, rng: (c / ADAPTER).unlink(),
    "no document": lambda c, rng: (c / "spillway.json").unlink(),
    "an empty document": lambda c, rng: (c / "spillway.json").write_text(""),
    "a document of another step": lambda c, rng: (c / "spillway.json").write_text(
        (c / "spillway.json").read_text().replace('"step": 12', '"step": 13')),
    "a document that was edited": lambda c, rng: (c / "spillway.json").write_text(
        (c / "spillway.json").read_text().replace('"row": "4"', '"row": "6"')),
    "a file in its place": lambda c, rng: (shutil.rmtree(c), c.write_text("x")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_left_out_and_the_one_before_taken(lora, straight, kind):
    lora.die()
    DAMAGE[kind](lora.out / "checkpoint-12", random.Random(kind))
    result = done(lora.go("--resume"))
    assert "checkpoint-12 is left out: " in result.stdout
    assert "resuming after step 8" in result.stdout
    assert checkpoints(lora.out) == [8, 12]  # the damaged one was replaced
    assert_same(lora, straight(*LORA))


def test_when_all_are_damaged_it_starts_afresh(lora, straight):
    lora.die()
    for step in (8, 12):
        flip(lora.out / f"checkpoint-{step}" / ADAPTER, random.Random(step))
    result = done(lora.go("--resume"))
    assert result.stdout.count(" is left out: ") == 2 and "starting afresh" in result.stdout
    assert_same(lora, straight(*LORA))


# ----------------------------------------------------------------------------------------- kills


def test_twenty_kills_lose_nothing(command, model, rows, tmp_path, straight):
    """SIGKILL at any moment, also while a checkpoint or the result is written: then --resume."""
    seed = int(os.environ.get("SPW_SEED", random.randrange(1 << 32)))
    print(f"SPW_SEED={seed}")
    rng = random.Random(seed)
    reference, kills, rounds = straight(*LORA), 0, 0
    while kills < 20:
        rounds += 1
        folder = tmp_path / str(rounds)
        folder.mkdir()
        run = Run(command, model, rows, folder, LORA, save_every=1)
        words = [command, "finetune", "--model", model, "--data", rows, "--out", run.out,
                 *map(str, [*run.asked[4:], *run.every, "--resume"])]
        finished = False
        while not finished:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True)
            if kills < 20:
                time.sleep(rng.uniform(0.0, 0.25))
                process.kill()  # a run that has come to its end does not notice
            stdout, stderr = process.communicate(timeout=120)
            assert process.returncode in (0, -signal.SIGKILL), (seed, stderr)
            assert "left out" not in stdout, (seed, stdout)
            finished = process.returncode == 0
            kills += not finished
        assert_same(run, reference)
