"""Lion and AdEMAMix against bitsandbytes' own on the CPU, and under the contract of the other classes."""
import copy
import io
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="NO torch, the optimizers are not tested")

import spillway  # noqa: E402
from spillway import _state  # noqa: E402

RULES = ("Lion", "AdEMAMix")
NAMES = [paged + rule + bits for rule in RULES for paged in ("", "Paged")
         for bits in ("", "8bit", "32bit")]
LR = {"Lion": 2e-3, "AdEMAMix": 1e-2}
SCHEDULED = dict(alpha=3.0, t_alpha=7, t_beta3=11)


def rule_of(name):
    return "Lion" if "Lion" in name else "AdEMAMix"


def a_model(seed=0, dtype=torch.float32):
    """A small net with a tensor of more than 4096 elements, and tails."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(67, 101), torch.nn.Tanh(),
                               torch.nn.Linear(101, 7)).to(dtype)


def their_name(name):
    """A class that works on the CPU; bitsandbytes' AdEMAMix32bit allocates half of what it writes."""
    name = name.replace("Paged", "")
    return "AdEMAMix" if name == "AdEMAMix32bit" else name


def make(name, model, library=spillway, **options):
    return getattr(library, name)(model.parameters(), lr=LR[rule_of(name)], **options)


def train(model, optimizer, steps, seed=0):
    random = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 67, generator=random).to(dtype)
        optimizer.zero_grad()
        loss = (model(x).float() - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def same_parameters(one, other):
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters()))


def flat(entry):
    return {**entry, **entry.get(_state.NESTED, {})}


@pytest.fixture
def bnb():
    return pytest.importorskip("bitsandbytes", reason="NO bitsandbytes, parity is not tested").optim


@pytest.fixture
def exact_sqrt(monkeypatch):
    """torch's fp32 square root, correctly rounded; with MKL a fifth of its results are an ulp off."""
    monkeypatch.setattr(torch.Tensor, "sqrt",
                        lambda x: torch.from_numpy(np.sqrt(x.numpy().astype(np.float64))).to(x))


# ------------------------------------------------------------------------- parity, 32-bit state --

def stepped(library, name, dtype, steps, **options):
    """A parameter after some steps, and its state; the same gradients for everyone."""
    random = torch.Generator().manual_seed(7)
    p = torch.nn.Parameter(torch.randn(5003, generator=random).to(dtype))
    optimizer = getattr(library, name)([p], lr=1e-2, weight_decay=0.1, **options)
    for _ in range(steps):
        scale = torch.exp2(torch.rand(5003, generator=random) * 16 - 14)
        p.grad = (torch.randn(5003, generator=random) * scale).to(dtype)
        p.grad[::97] = 0
        optimizer.step()
    return p.detach(), optimizer.state[p]


def both(bnb, *arguments, **options):
    return stepped(bnb, *arguments, **options), stepped(spillway, *arguments, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lion_has_bitsandbytes_bits(bnb, dtype):
    (theirs, their_state), (ours, our_state) = both(bnb, "Lion32bit", dtype, 12)
    assert torch.equal(theirs, ours)
    assert torch.equal(their_state["state1"], our_state["state1"])
    assert their_state["step"] == our_state["step"] == 12


@pytest.mark.parametrize("options", [{}, SCHEDULED, dict(t_alpha=5), dict(t_beta3=100)],
                         ids=["plain", "scheduled", "alpha", "beta3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ademamix_has_bitsandbytes_bits(bnb, exact_sqrt, dtype, options):
    """But for beta3 on its way: our e^x is not libm's, which a rounding may show."""
    (theirs, their_state), (ours, our_state) = both(bnb, "AdEMAMix", dtype, 14, **options)
    for key in ("state1", "state2"):
        torch.testing.assert_close(our_state[key], their_state[key], rtol=1e-6, atol=1e-12)
    assert torch.equal(their_state["state1"][0], our_state["state1"][0])
    if "t_beta3" not in options:
        assert torch.equal(their_state["state1"], our_state["state1"])
        assert torch.equal(theirs, ours)
    bits = {torch.float32: 20, torch.bfloat16: 7, torch.float16: 10}[dtype]
    torch.testing.assert_close(ours, theirs, rtol=2.0**-bits, atol=1e-7)


@pytest.mark.parametrize("bits", ["", "8bit", "32bit"])
@pytest.mark.parametrize("rule", RULES)
def test_paged_classes_have_the_rules_bits(rule, bits):
    ours, _ = stepped(spillway, rule + bits, torch.float32, 5)
    paged, _ = stepped(spillway, "Paged" + rule + bits, torch.float32, 5)
    assert torch.equal(ours, paged)


# -------------------------------------------------------------------------- parity, 8-bit state --

@pytest.mark.parametrize("rule", RULES)
def test_one_8bit_step_is_theirs_to_a_code(bnb, rule):
    """Their quantiser on the CPU looks codes up in a table that is coarse near 0."""
    torch.manual_seed(1)
    start, grad = torch.randn(5003), torch.randn(5003)
    pair = []
    for library in (bnb, spillway):
        p = torch.nn.Parameter(start.clone())
        optimizer = getattr(library, rule + "8bit")([p], lr=1e-2)
        p.grad = grad.clone()
        optimizer.step()
        pair.append((p.detach(), flat(optimizer.state_dict()["state"][0])))
    (theirs, their_state), (ours, our_state) = pair
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    for key in ("absmax1", "absmax2"):
        if key in their_state:
            torch.testing.assert_close(our_state[key], their_state[key], rtol=1e-5, atol=0)
    ones = {key: torch.ones_like(value) for key, value in our_state.items() if "absmax" in key}
    name = rule.lower()
    relative = [_state.as_floats(_state.parse({**state, **ones}, 5003, "", name))
                for state in (our_state, their_state)]
    for our_moment, their_moment in zip(*relative):
        assert (our_moment - their_moment).abs().max() < 0.016  # a code
        assert (our_moment - their_moment).abs().mean() < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_as_bitsandbytes(bnb, name):
    theirs, ours = a_model(), a_model()
    a = train(theirs, make(their_name(name), theirs, bnb), 20)
    b = train(ours, make(name, ours), 20)
    assert a[-1] < a[0]
    assert max(abs(x - y) / x for x, y in zip(a, b)) < (4e-2 if name.endswith("8bit") else 1e-4)


# --------------------------------------------------------------------------------- checkpoints --

@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("bits", ["8bit", "32bit"])
@pytest.mark.parametrize("rule", RULES)
def test_bitsandbytes_state_comes_in_and_goes_out(bnb, rule, bits, nested):
    theirs = a_model()
    reference = make(their_name(rule + bits), theirs, bnb)
    train(theirs, reference, 5)
    saved = reference.state_dict()
    if not nested:
        saved["state"] = {i: {"step": s["step"], **s[_state.NESTED]}
                          for i, s in saved["state"].items()}
    ours = copy.deepcopy(theirs)
    optimizer = make("Paged" + rule + bits, ours)
    optimizer.load_state_dict(saved)
    out = spillway.to_bitsandbytes(optimizer.state_dict(), nested)
    assert (_state.NESTED in out["state"][0]) == nested
    for i, entry in out["state"].items():
        mine, before = flat(entry), flat(saved["state"][i])
        assert set(mine) == set(before)
        for key in mine:
            if key.startswith(("state", "absmax")):
                assert torch.equal(mine[key], before[key]), key
    back = copy.deepcopy(ours)
    returned = make(their_name(rule + bits), back, bnb)
    returned.load_state_dict(out)
    a, b = train(theirs, reference, 3, seed=3), train(back, returned, 3, seed=3)
    assert a == b
    c = train(ours, optimizer, 3, seed=3)
    assert max(abs(x - y) / x for x, y in zip(a, c)) < (2e-2 if bits == "8bit" else 1e-4)


@pytest.mark.parametrize("options", [dict(), dict(paging="copy", state_mem=0)],
                         ids=["default", "nothing resident"])
@pytest.mark.parametrize("name", ["Lion32bit", "PagedLion8bit", "AdEMAMix32bit",
                                  "PagedAdEMAMix8bit"])
def test_a_loaded_state_goes_on_bit_for_bit(name, options):
    """Also in the middle of the schedules, which follow each parameter's own steps."""
    options = {**options, **(SCHEDULED if "AdEMAMix" in name else {})}
    model = a_model()
    optimizer = make(name, model, **options)
    train(model, optimizer, 4)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(model)
    loaded = getattr(spillway, name)(other.parameters(), lr=5.0, **options)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert loaded.param_groups[0]["lr"] == LR[rule_of(name)]
    assert train(model, optimizer, 9, seed=9) == train(other, loaded, 9, seed=9)
    assert same_parameters(model, other)


@pytest.mark.parametrize("name", ["PagedLion8bit", "PagedAdEMAMix8bit"])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))],
                         ids=["deepcopy", "pickle"])
def test_a_copy_is_another_optimizer_in_the_same_state(way, name):
    model = a_model()
    optimizer = make(name, model, state_mem="1MiB")
    train(model, optimizer, 3)
    other, copied = way((model, optimizer))
    assert train(model, optimizer, 3, seed=5) == train(other, copied, 3, seed=5)
    assert same_parameters(model, other)


@pytest.mark.parametrize("rule", RULES)
def test_state_of_8_bits_loads_into_32_and_back(rule):
    model = a_model()
    optimizer = make(rule + "8bit", model)
    train(model, optimizer, 4)
    wide = make(rule + "32bit", model)
    wide.load_state_dict(optimizer.state_dict())
    weight = model[0].weight
    codes, floats = optimizer.state[weight], wide.state[weight]
    rows = 1 if rule == "Lion" else 2
    for row in range(rows):
        pick = (lambda x: x) if rows == 1 else (lambda x: x[row])
        expected = _state.dequantise(pick(codes["state1"]).reshape(-1), codes["qmap1"],
                                     pick(codes["absmax1"]))
        assert torch.equal(pick(floats["state1"]).reshape(-1), expected)
    narrow = make(rule + "8bit", model)
    narrow.load_state_dict(wide.state_dict())
    again = narrow.state[weight]
    torch.testing.assert_close(again["absmax1"], codes["absmax1"], rtol=1e-2, atol=0)


def test_state_is_shaped_as_bitsandbytes_has_it():
    model = a_model()
    weight, bias = model[0].weight, model[0].bias
    lion, mix = make("Lion8bit", model), make("AdEMAMix8bit", model)
    train(model, lion, 1)
    train(model, mix, 1)
    assert set(lion.state[weight]) == {"step", "state1", "qmap1", "absmax1"}
    assert set(lion.state[bias]) == {"step", "state1"}
    state = mix.state[weight]
    assert set(state) == {"step", "state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2"}
    assert state["state1"].shape == (2, *weight.shape) and state["state1"].dtype == torch.uint8
    assert state["absmax1"].shape == (2, 27) and state["absmax2"].shape == (27,)
    assert (state["absmax1"][0] > 100 * state["absmax1"][1]).all()  # 1 - beta1 against 1 - beta3
    state["absmax1"] = torch.stack([torch.full((27,), 2.0), torch.full((27,), 3.0)])
    assert torch.equal(mix.state[weight]["absmax1"][1], torch.full((27,), 3.0))
    for part in ("m", "m_slow"):
        assert mix._slot(weight).read("absmax_" + part)[0] == (2.0 if part == "m" else 3.0)


@pytest.mark.parametrize("saver, loader, word", [
    ("AdamW32bit", "Lion32bit", "state2"), ("AdEMAMix8bit", "Lion8bit", "state2"),
    ("AdamW8bit", "AdEMAMix8bit", "elements"), ("AdEMAMix32bit", "AdamW32bit", "elements"),
    ("Lion32bit", "AdamW32bit", "state2"), ("Lion8bit", "AdEMAMix8bit", "state2")])
def test_another_rules_state_is_refused(saver, loader, word):
    model = a_model()
    optimizer = getattr(spillway, saver)(model.parameters())
    train(model, optimizer, 1)
    other = getattr(spillway, loader)(model.parameters())
    saved = {**optimizer.state_dict(), "param_groups": other.state_dict()["param_groups"]}
    with pytest.raises(ValueError, match=word):
        other.load_state_dict(saved)
    assert other.pager_stats() == []


@pytest.mark.parametrize("rule", RULES)
def test_there_is_no_way_to_torch(rule):
    model = a_model()
    optimizer = make(rule, model)
    train(model, optimizer, 1)
    with pytest.raises(ValueError, match="torch.optim has no optimizer"):
        spillway.to_torch(optimizer.state_dict())


# -------------------------------------------------------------------------------- the same bits --

@pytest.mark.parametrize("name", ["PagedLion8bit", "PagedLion32bit", "PagedAdEMAMix8bit",
                                  "PagedAdEMAMix32bit"])
def test_parameters_do_not_depend_on_what_was_paged(name, tmp_path):
    ways = [dict(paging="off"), dict(paging="mapped"), dict(paging="copy", state_mem=0),
            dict(paging="copy", state_mem="50%", page_size="128KiB"),
            dict(paging="copy", store=f"file:{tmp_path}/state", state_mem="25%")]
    models = []
    for options in ways:
        models.append(a_model())
        train(models[-1], make(name, models[-1], **options), 6)
    assert all(same_parameters(models[0], model) for model in models[1:])


# ---------------------------------------------------------------------------- arguments, inputs --

def test_defaults_are_bitsandbytes(bnb):
    params = [torch.nn.Parameter(torch.ones(3))]
    for name in NAMES:
        if name.endswith("AdEMAMix32bit"):
            continue  # theirs allocate half of what they write
        theirs = getattr(bnb, name)(params).param_groups[0]
        ours = getattr(spillway, name)(params).param_groups[0]
        assert {key: ours[key] for key in ours if key != "params"}.items() <= theirs.items(), name


@pytest.mark.parametrize("name, arguments, word", [
    ("Lion", dict(lr=-1.0), "learning rate"), ("Lion", dict(betas=(0.9, 1.0)), "index 1"),
    ("Lion", dict(betas=(0.9, 0.99, 0.9)), "betas"), ("Lion", dict(args=1), "args"),
    ("Lion8bit", dict(optim_bits=8), "optim_bits"), ("Lion", dict(decay_order="never"), "decay"),
    ("AdEMAMix", dict(betas=(0.9, 0.99)), "betas"), ("AdEMAMix", dict(alpha=-1), "alpha"),
    ("AdEMAMix", dict(t_alpha=-1), "t_alpha"), ("AdEMAMix", dict(t_beta3=2.5), "t_beta3"),
    ("AdEMAMix", dict(betas=(0.0, 0.9, 0.99), t_beta3=5), "t_beta3"),
    ("AdEMAMix", dict(weight_decay=-1), "weight_decay")])
def test_arguments_that_mean_nothing_are_refused_by_name(name, arguments, word):
    with pytest.raises(ValueError, match=word):
        getattr(spillway, name)([torch.nn.Parameter(torch.ones(3))], **arguments)


@pytest.mark.parametrize("name", ["Lion32bit", "Lion8bit", "AdEMAMix32bit", "AdEMAMix8bit"])
def test_elements_whose_gradient_is_not_finite_stay(name):
    p = torch.nn.Parameter(torch.ones(5003))
    p.grad = torch.ones(5003)
    p.grad[3], p.grad[4097], p.grad[5002] = float("nan"), float("inf"), -float("inf")
    optimizer = getattr(spillway, name)([p], lr=0.1, weight_decay=0.1)
    optimizer.step()
    assert torch.equal(p != 1, torch.isfinite(p.grad))
    assert torch.isfinite(p).all()


@pytest.mark.parametrize("name", ["AdamW", "Adam", "AdEMAMix", "Lion"])
def test_decay_may_come_after_the_update(name):
    moved = {}
    for order, decay in (("before", 0.1), ("after", 0.1), ("none", 0.0)):
        p = torch.nn.Parameter(torch.linspace(-1, 1, 4097))
        p.grad = torch.ones(4097)
        options = {} if order == "none" else {"decay_order": order}
        getattr(spillway, name)([p], lr=0.5, weight_decay=decay, **options).step()
        moved[order] = p.detach()
    start = torch.linspace(-1, 1, 4097)
    torch.testing.assert_close(moved["before"], start * 0.95 + (moved["none"] - start))
    torch.testing.assert_close(moved["after"], moved["none"] * 0.95)


def test_optim_has_them_too():
    for name in NAMES:
        assert getattr(spillway.optim, name) is getattr(spillway, name)
    with pytest.raises(AttributeError):
        spillway.optim.SGD
