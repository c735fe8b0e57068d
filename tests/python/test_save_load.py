"""optimizer.save and optimizer.load: one file, and the way to and from bitsandbytes' pickles."""
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="NO torch, the optimizers are not tested")

import spillway  # noqa: E402
from test_optim import a_class, a_model, same_parameters, train  # noqa: E402

CLASSES = ["PagedAdamW8bit", "PagedAdamW32bit", "Adam8bit"]
PAGINGS = [{}, {"state_mem": 0, "page_size": "64KiB"}, {"paging": "mapped"}, {"store": "file"}]


def options_of(paging, tmp_path):
    return {**paging, "store": f"file:{tmp_path / 'store'}"} if "store" in paging else paging


def copy_of(model):
    other = a_model()
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize("paging", PAGINGS, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_a_loaded_optimizer_goes_on_as_the_saved_one(tmp_path, name, paging):
    model = a_model()
    optimizer = a_class(name)(model.named_parameters(), lr=1e-2)
    train(model, optimizer, 5)
    optimizer.save(tmp_path / "optim.safetensors")
    other = copy_of(model)
    if not name.startswith("Paged"):
        paging = {}
    resumed = a_class(name)(other.named_parameters(), lr=1e-2, **options_of(paging, tmp_path))
    resumed.load(tmp_path / "optim.safetensors")
    assert train(model, optimizer, 4, seed=1) == train(other, resumed, 4, seed=1)
    assert same_parameters(model, other)


def test_keys_are_names_or_numbers(tmp_path):
    load_file = pytest.importorskip("safetensors.torch").load_file
    model = a_model()
    for params, key in ((model.named_parameters(), "2.bias.m"), (model.parameters(), "3.m")):
        optimizer = spillway.AdamW8bit(params)
        train(model, optimizer, 1)
        optimizer.save(tmp_path / "file")
        assert load_file(tmp_path / "file")[key].any()


def test_what_was_loaded_is_in_the_state_dict(tmp_path):
    model = a_model()
    optimizer = spillway.PagedAdamW8bit(model.parameters())
    train(model, optimizer, 2)
    optimizer.save(tmp_path / "file")
    fresh = spillway.PagedAdamW8bit(copy_of(model).parameters())
    fresh.load(tmp_path / "file")
    saved, loaded = optimizer.state_dict()["state"], fresh.state_dict()["state"]
    assert saved.keys() == loaded.keys() and len(saved) == 4
    for key in saved:
        nested = "__bnb_optimizer_quant_state__"
        assert saved[key]["step"] == loaded[key]["step"] == 2
        assert all(torch.equal(value, loaded[key][nested][k])
                   for k, value in saved[key][nested].items())


def test_refusals_name_the_reason_and_change_nothing(tmp_path):
    model = a_model()
    optimizer = spillway.PagedAdamW8bit(model.named_parameters())
    train(model, optimizer, 2)
    optimizer.save(tmp_path / "file")
    with pytest.raises(spillway.Error, match="has no parameter 0"):
        spillway.PagedAdamW8bit(model.parameters()).load(tmp_path / "file")
    with pytest.raises(spillway.Error, match="is U8, here it is F32"):
        spillway.PagedAdamW32bit(model.named_parameters()).load(tmp_path / "file")
    with pytest.raises(spillway.Error, match="none"):
        optimizer.load(tmp_path / "none")
    raw = bytearray((tmp_path / "file").read_bytes())
    raw[-5] ^= 1
    (tmp_path / "bad").write_bytes(raw)
    with pytest.raises(spillway.Error, match="tensor .* damaged"):
        optimizer.load(tmp_path / "bad")
    optimizer.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "file").read_bytes()
    model.add_module("late", torch.nn.Linear(3, 3))
    optimizer.add_param_group({"params": list(model.late.named_parameters())})
    with pytest.raises(ValueError, match="state_dict"):
        optimizer.save(tmp_path / "file")


def test_bitsandbytes_pickle_becomes_a_file_and_goes_back(tmp_path, build_dir):
    """Their state_dict in by load_state_dict, out by save; converted by the command, in by load; and
    a pickle for them again: every code and scale the same."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = a_model()
    theirs = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=1e-2)
    train(model, theirs, 3)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pt")
    ours = spillway.PagedAdamW8bit(copy_of(model).parameters())
    ours.load_state_dict(torch.load(tmp_path / "theirs.pt", weights_only=False))
    ours.save(tmp_path / "ours.safetensors")
    for layout, source, target in (("bitsandbytes", "ours", "flat"), ("spillway", "flat", "again")):
        subprocess.run([f"{build_dir}/spillway", "ckpt", "convert",
                        tmp_path / f"{source}.safetensors", "--to", layout, "--out",
                        tmp_path / f"{target}.safetensors"], check=True)
    again = spillway.PagedAdamW8bit(copy_of(model).parameters())
    again.load(tmp_path / "again.safetensors")
    back = spillway.to_bitsandbytes(again.state_dict())["state"]
    for key, wanted in theirs.state_dict()["state"].items():
        nested = wanted["__bnb_optimizer_quant_state__"]
        assert back[key]["step"] == wanted["step"]
        for name in ("state1", "state2", "absmax1", "absmax2"):
            if name in nested:
                got = back[key]["__bnb_optimizer_quant_state__"][name]
                assert torch.equal(got.flatten(), nested[name].flatten())
    # A converted file has steps and no betas: the next step is as after load_state_dict.
    one, other = copy_of(model), copy_of(model)
    runs = [spillway.PagedAdamW8bit(m.parameters(), lr=1e-2) for m in (one, other)]
    runs[0].load_state_dict(torch.load(tmp_path / "theirs.pt", weights_only=False))
    runs[1].load(tmp_path / "again.safetensors")
    for group in runs[0].param_groups:
        group["lr"] = 1e-2
    assert train(one, runs[0], 3) == train(other, runs[1], 3) and same_parameters(one, other)
