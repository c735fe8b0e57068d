"""`spillway ckpt`: what is in an optimizer's file, is it whole, and other libraries' layouts."""

import json
import shutil

import pytest

from test_cli import build_dir, command, model, rows, run  # noqa: F401 (fixtures)

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
from safetensors import safe_open  # noqa: E402

CODED = "model.layers.0.self_attn.q_proj.weight"  # 4,096 elements: 8-bit
SMALL = "model.norm.weight"


@pytest.fixture(scope="module")
def files(command, model, rows, tmp_path_factory):
    """A full run's optimizer files, by the bits of their state."""
    made = {}
    for state in ("8bit", "32bit"):
        out = tmp_path_factory.mktemp(state) / "out"
        done = run(command, "finetune", "--model", model, "--data", rows, "--out", out, "--full",
                   "--steps", 3, "--save-every", 3, "--state", state, "--threads", 1)
        assert done.returncode == 0, done.stderr
        made[state] = out / "checkpoint-3" / "optimizer.safetensors"
    return made


def ckpt(command, *arguments):
    done = run(command, "ckpt", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_failed(result, *words, status=1):
    assert result.returncode == status
    assert result.stderr.startswith("spillway: ") and result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr, result.stderr


def steps(path):
    with safe_open(path, "pt") as file:
        return {key: value for key, value in file.metadata().items() if key.startswith("step.")}


# ---------------------------------------------------------------------------- inspect and verify


def test_inspect_lists_tensors_and_metadata(command, files):
    text = ckpt(command, "inspect", files["8bit"])
    assert f"{CODED}.absmax_v [16]" in text and f"step.{CODED} = 3" in text
    assert "crc32c" not in text
    said = json.loads(ckpt(command, "inspect", files["8bit"], "--json"))
    tensors = safetensors.load_file(files["8bit"])
    assert {t["name"]: t["shape"] for t in said["tensors"]} == \
        {name: list(t.shape) for name, t in tensors.items()}
    raw = files["8bit"].read_bytes()
    for t in said["tensors"]:
        assert raw[t["offset"]:t["offset"] + t["bytes"]] == tensors[t["name"]].numpy().tobytes()
    assert said["metadata"]["codes"] == "bitsandbytes" and said["bytes"] == len(raw)


def test_inspect_shows_any_safetensors_file(command, model):
    assert f"{SMALL} [64]" in ckpt(command, "inspect", model / "model.safetensors")


def test_verify_finds_an_intact_file_intact(command, files):
    assert "intact" in ckpt(command, "verify", files["8bit"])
    assert json.loads(ckpt(command, "verify", files["32bit"], "--json"))["intact"] is True


def test_verify_names_every_damaged_tensor(command, files, tmp_path):
    said = json.loads(ckpt(command, "inspect", files["8bit"], "--json"))
    place = {t["name"]: t for t in said["tensors"]}
    bad = [f"{CODED}.m", f"{SMALL}.v"]
    raw = bytearray(files["8bit"].read_bytes())
    for name in bad:
        raw[place[name]["offset"] + place[name]["bytes"] // 2] ^= 16
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw)
    result = run(command, "ckpt", "verify", path)
    assert_failed(result, str(path), f"2 of {len(place)} tensors are damaged")
    lines = result.stdout.splitlines()
    assert len(lines) == 2 and all(f"tensor {name}, bytes " in line
                                   for name, line in zip(sorted(bad), lines))
    result = run(command, "ckpt", "verify", path, "--json")
    said = json.loads(result.stdout)
    assert result.returncode == 1 and not said["intact"] and len(said["damage"]) == 2


def test_verify_refuses_headers_that_are_not_as_written(command, files, model, tmp_path):
    assert_failed(run(command, "ckpt", "verify", model / "model.safetensors"), "not written by")
    path = tmp_path / "bad.safetensors"
    raw = files["8bit"].read_bytes()
    path.write_bytes(raw.replace(b'"step.' + SMALL.encode() + b'":"3"',
                                 b'"step.' + SMALL.encode() + b'":"4"'))
    assert_failed(run(command, "ckpt", "verify", path), "the header, bytes 0 to", "damaged")


USAGE = [
    ([], ["inspect, verify or convert"]), (["look"], ["look", "inspect, verify or convert"]),
    (["verify"], ["verify FILE"]), (["convert", "f", "--out", "o"], ["--to"]),
    (["convert", "f", "--to", "torch"], ["--out"]),
    (["convert", "f", "--to", "jax", "--out", "o"], ["jax", "spillway, bitsandbytes, torch"]),
    (["inspect", "f", "g"], ["g"]), (["inspect", "f", "--to", "torch"], ["--to", "unknown option"]),
]


@pytest.mark.parametrize("arguments,words", USAGE, ids=lambda value: " ".join(value))
def test_bad_usage_is_told(command, arguments, words):
    assert_failed(run(command, "ckpt", *arguments), *words, status=2)


# ----------------------------------------------------------------------------------------- convert


def convert(command, source, layout, target):
    ckpt(command, "convert", source, "--to", layout, "--out", target)
    return safetensors.load_file(target)


@pytest.mark.parametrize("state", ["8bit", "32bit"])
def test_to_bitsandbytes_and_back_is_the_same_state(command, files, tmp_path, state):
    ours = safetensors.load_file(files[state])
    theirs = convert(command, files[state], "bitsandbytes", tmp_path / "theirs")
    assert torch.equal(theirs[f"{CODED}.state1"], ours[f"{CODED}.m"])
    assert theirs[f"{SMALL}.state2"].dtype == torch.float32 and theirs[f"{SMALL}.step"] == 3
    assert (f"{CODED}.qmap1" in theirs) == (state == "8bit")
    again = convert(command, tmp_path / "theirs", "spillway", tmp_path / "again")
    assert ours.keys() == again.keys() and all(torch.equal(ours[k], again[k]) for k in ours)
    assert steps(tmp_path / "again") == steps(files[state])
    ckpt(command, "verify", tmp_path / "again")


def test_to_torch_is_dequantised_to_the_last_bit(command, files, tmp_path):
    ours = safetensors.load_file(files["8bit"])
    tables = convert(command, files["8bit"], "bitsandbytes", tmp_path / "theirs")
    torchs = convert(command, files["8bit"], "torch", tmp_path / "torch")
    assert set(torchs) == {key[:-2] + end for key in ours if key.endswith(".m")
                           for end in (".exp_avg", ".exp_avg_sq", ".step")}
    for moment, number, name in (("m", 1, "exp_avg"), ("v", 2, "exp_avg_sq")):
        codes = ours[f"{CODED}.{moment}"].long()
        scale = ours[f"{CODED}.absmax_{moment}"].repeat_interleave(256)[:codes.numel()]
        wanted = tables[f"{CODED}.qmap{number}"][codes] * scale
        assert torch.equal(torchs[f"{CODED}.{name}"], wanted) and wanted.any()
        assert torch.equal(torchs[f"{SMALL}.{name}"], ours[f"{SMALL}.{moment}"])


def test_torch_s_state_becomes_a_32bit_file(command, files, tmp_path):
    """Their shapes, their step as a tensor; the file is the run's own again."""
    ours = safetensors.load_file(files["32bit"])
    theirs = {}
    for key, value in ours.items():
        name, part = key.rsplit(".", 1)
        shape = (64, -1) if value.numel() % 64 == 0 else (-1,)
        theirs[f"{name}.{'exp_avg' if part == 'm' else 'exp_avg_sq'}"] = value.view(shape)
        theirs[f"{name}.step"] = torch.tensor(3.0)
    safetensors.save_file(theirs, tmp_path / "theirs")
    again = convert(command, tmp_path / "theirs", "spillway", tmp_path / "again")
    assert ours.keys() == again.keys() and all(torch.equal(ours[k], again[k]) for k in ours)
    assert steps(tmp_path / "again") == steps(files["32bit"])


def flattened(names, optimizer):
    """A state_dict of bitsandbytes, nested or flat, as safetensors wants it."""
    tensors = {}
    for name, state in zip(names, optimizer.state_dict()["state"].values()):
        flat = {**state, **state.get("__bnb_optimizer_quant_state__", {})}
        tensors.update({f"{name}.{key}": value.contiguous() for key, value in flat.items()
                        if isinstance(value, torch.Tensor)})
        tensors[f"{name}.step"] = torch.tensor(state["step"])  # an int: I64
    return tensors


def bitsandbytes_state(tmp_path):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    params = {"large": torch.nn.Parameter(torch.randn(70, 100)),
              "small": torch.nn.Parameter(torch.randn(9))}
    optimizer = bitsandbytes.optim.AdamW8bit(params.values(), lr=1e-3)
    for _ in range(4):
        for param in params.values():
            param.grad = torch.randn_like(param)
        optimizer.step()
    tensors = flattened(params, optimizer)
    safetensors.save_file(tensors, tmp_path / "theirs")
    return tensors


def test_bitsandbytes_own_state_is_taken_code_by_code(command, tmp_path):
    theirs = bitsandbytes_state(tmp_path)
    ours = convert(command, tmp_path / "theirs", "spillway", tmp_path / "ours")
    assert torch.equal(ours["large.m"], theirs["large.state1"].flatten())
    assert torch.equal(ours["large.absmax_v"], theirs["large.absmax2"])
    assert torch.equal(ours["small.v"], theirs["small.state2"])
    assert steps(tmp_path / "ours") == {"step.large": "4", "step.small": "4"}


def test_blocks_of_2048_keep_their_values(command, tmp_path):
    torch.manual_seed(1)
    n = 3 * 2048 + 700
    tables = bitsandbytes_state(tmp_path)
    old = {"w.state1": torch.randint(256, (n,), dtype=torch.uint8),
           "w.state2": torch.randint(256, (n,), dtype=torch.uint8),
           "w.absmax1": torch.rand(4), "w.absmax2": torch.rand(4), "w.step": torch.tensor(9),
           "w.qmap1": tables["large.qmap1"], "w.qmap2": tables["large.qmap2"]}
    safetensors.save_file(old, tmp_path / "old")
    new = convert(command, tmp_path / "old", "spillway", tmp_path / "new")
    assert new["w.absmax_m"].numel() == 27
    for number, moment in ((1, "m"), (2, "v")):
        assert torch.equal(new[f"w.{moment}"], old[f"w.state{number}"])
        spread = new[f"w.absmax_{moment}"].repeat_interleave(256)[:n]
        assert torch.equal(spread, old[f"w.absmax{number}"].repeat_interleave(2048)[:n])


def refuse(command, tmp_path, tensors, *words, metadata=None):
    safetensors.save_file(tensors, tmp_path / "source", metadata=metadata)
    result = run(command, "ckpt", "convert", tmp_path / "source", "--to", "spillway", "--out",
                 tmp_path / "target")
    assert_failed(result, str(tmp_path / "source"), *words)
    assert not (tmp_path / "target").exists()


def test_what_cannot_be_converted_is_told(command, tmp_path, files):
    floats, codes = torch.rand(300), torch.randint(256, (300,), dtype=torch.uint8)
    step = torch.tensor(1.0)
    refuse(command, tmp_path, {"w": floats}, "no optimizer's file")
    refuse(command, tmp_path, {"w.exp_avg": floats, "w.exp_avg_sq": floats.clone()}, "no step of w")
    refuse(command, tmp_path, {"w.exp_avg": floats, "w.exp_avg_sq": torch.rand(299), "w.step": step},
           "w.exp_avg_sq", "not of the size")
    refuse(command, tmp_path, {"w.state1": codes, "w.step": step}, "w.state1", "absmax")
    refuse(command, tmp_path, {"w.state1": codes, "w.absmax1": torch.rand(3), "w.step": step},
           "w.absmax1", "neither blocks of 256 nor of 2048")
    refuse(command, tmp_path, {"w.state1": codes, "w.absmax1": torch.rand(2), "w.step": step,
                               "w.qmap1": torch.rand(256)}, "w.qmap1", "dynamic table")
    refuse(command, tmp_path, {"w.exp_avg": floats, "w.step": step, "other": floats.clone()},
           "1 of its 3 tensors")
    refuse(command, tmp_path, {"w.exp_avg": floats}, "w is no number", metadata={"step.w": "many"})
    bad = bytearray(files["8bit"].read_bytes())
    bad[-1] ^= 1
    (tmp_path / "bad").write_bytes(bad)
    result = run(command, "ckpt", "convert", tmp_path / "bad", "--to", "torch", "--out",
                 tmp_path / "target")
    assert_failed(result, "damaged")
    assert not (tmp_path / "target").exists()


def test_a_file_may_be_converted_in_place(command, files, tmp_path):
    path = tmp_path / "file"
    shutil.copy(files["8bit"], path)
    convert(command, path, "bitsandbytes", path)
    again = convert(command, path, "spillway", path)
    ours = safetensors.load_file(files["8bit"])
    assert ours.keys() == again.keys() and all(torch.equal(ours[k], again[k]) for k in ours)
