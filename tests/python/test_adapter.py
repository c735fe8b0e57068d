"""Adapters to and from PEFT: ours loads there with equal tensors, PEFT's loads here and is saved
back as it was, and the scale is the one PEFT uses."""
import json
import os
import subprocess

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
from safetensors.numpy import load_file  # noqa: E402

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(
        vocab_size=101, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True)
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def load_model(model_dir):
    return transformers.AutoModelForCausalLM.from_pretrained(model_dir)


@pytest.fixture
def probe(tools_dir, model_dir, tmp_path):
    def run(*words, wanted=0):
        out = tmp_path / f"out-{len(os.listdir(tmp_path))}"
        out.mkdir()
        done = subprocess.run([os.path.join(tools_dir, "adapter_probe"), model_dir, out,
                               *map(str, words)], capture_output=True, text=True, timeout=120)
        assert done.returncode == wanted, done.stderr
        return out, done.stdout.split() if wanted == 0 else done.stderr
    return run


def tensors_of(model):
    return {name.replace(".default", ""): value.detach().numpy()
            for name, value in model.named_parameters() if "lora_" in name}


def check_equal(left, right):
    assert sorted(left) == sorted(right)
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def scale_of(model):
    layer = model.base_model.model.model.layers[0]
    for module in layer.modules():
        if isinstance(getattr(module, "scaling", None), dict):
            return module.scaling["default"]
    raise AssertionError("no LoRA layer")


@pytest.mark.parametrize("targets,rslora", [("all", 0), ("q_proj,v_proj", 0), ("down_proj", 1)])
def test_ours_loads_in_peft(probe, model_dir, targets, rslora):
    out, said = probe("new", 4, 12, 0.05, rslora, targets, 7)
    model = peft.PeftModel.from_pretrained(load_model(model_dir), out)
    written = load_file(out / "adapter_model.safetensors")
    check_equal(tensors_of(model), written)
    layers = LINEAR if targets == "all" else targets.split(",")
    assert len(written) == 2 * 2 * len(layers)
    config = model.peft_config["default"]
    assert set(config.target_modules) == set(layers)
    assert (config.r, config.lora_alpha, config.lora_dropout) == (4, 12, 0.05)
    assert config.use_rslora == bool(rslora)
    assert float(said[3]) == pytest.approx(scale_of(model), rel=1e-6)
    for name, value in written.items():
        assert value.dtype == np.float32
        if "lora_B" in name:
            assert not value.any()
        else:
            bound = 1 / np.sqrt(value.shape[1])
            assert np.abs(value).max() <= bound and value.std() > 0.4 * bound


def test_a_seed_gives_the_same_start_whatever_else_is_a_target(probe):
    everything = load_file(probe("new", 4, 8, 0, 0, "all", 7)[0] / "adapter_model.safetensors")
    some = load_file(probe("new", 4, 8, 0, 0, "v_proj", 7)[0] / "adapter_model.safetensors")
    other = load_file(probe("new", 4, 8, 0, 0, "v_proj", 8)[0] / "adapter_model.safetensors")
    for name in some:
        np.testing.assert_array_equal(some[name], everything[name])
        assert "lora_B" in name or (some[name] != other[name]).mean() > 0.99


def save_theirs(model_dir, path, **options):
    options = {"r": 4, "lora_alpha": 12, "lora_dropout": 0.1, "target_modules": LINEAR, **options}
    model = peft.get_peft_model(load_model(model_dir),
                                peft.LoraConfig(task_type="CAUSAL_LM", **options))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize("options", [
    {}, {"target_modules": ["q_proj", "v_proj"]}, {"use_rslora": True, "r": 8},
    {"target_modules": "all-linear"}, {"target_modules": ["mlp.up_proj"], "lora_alpha": 7.5}])
def test_theirs_loads_here_and_is_saved_back(probe, model_dir, tmp_path, options):
    model = save_theirs(model_dir, tmp_path / "theirs", **options)
    out, said = probe("load", tmp_path / "theirs")
    saved = load_file(tmp_path / "theirs" / "adapter_model.safetensors")
    check_equal(load_file(out / "adapter_model.safetensors"), saved)
    again = peft.PeftModel.from_pretrained(load_model(model_dir), out)
    check_equal(tensors_of(again), tensors_of(model))
    assert float(said[3]) == pytest.approx(scale_of(model), rel=1e-6)
    assert scale_of(again) == pytest.approx(scale_of(model), rel=1e-6)


@pytest.mark.parametrize("options,word", [
    ({"use_dora": True}, "use_dora"), ({"bias": "all"}, "bias"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"), ({"rank_pattern": {"q_proj": 2}},
                                                            "rank_pattern"),
    ({"layers_to_transform": [0]}, "layers_to_transform"),
    ({"layer_replication": [(0, 2), (0, 2)]}, "layer_replication"),
    ({"target_modules": ["q_proj", "lm_head"]}, "lm_head")])
def test_what_changes_the_arithmetic_is_refused_by_name(probe, model_dir, tmp_path, options, word):
    save_theirs(model_dir, tmp_path / "theirs", **options)
    said = probe("load", tmp_path / "theirs", wanted=1)[1]
    assert word in said and "adapter_config.json" in said and said.count("\n") == 1


def test_a_single_blocks_pairs_are_not_taken_for_all(probe, model_dir, tmp_path):
    save_theirs(model_dir, tmp_path / "theirs", target_modules=["model.layers.1.mlp.up_proj"])
    said = probe("load", tmp_path / "theirs", wanted=1)[1]
    assert "lacks tensor base_model.model.model.layers.0.mlp.up_proj.lora_A.weight" in said


def test_an_adapter_of_another_model_is_refused(probe, model_dir, tmp_path):
    save_theirs(model_dir, tmp_path / "theirs")
    path = tmp_path / "theirs" / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "r": 8}))
    assert "its shape is not [8, 48]" in probe("load", tmp_path / "theirs", wanted=1)[1]
    path.write_text(json.dumps({**config, "target_modules": ["q_proj"]}))
    assert "has 28 tensors" in probe("load", tmp_path / "theirs", wanted=1)[1]
    path.write_text(json.dumps({**config, "target_modules": []}))
    assert "target_modules" in probe("load", tmp_path / "theirs", wanted=1)[1]
    path.unlink()
    assert "adapter_config.json" in probe("load", tmp_path / "theirs", wanted=1)[1]
