"""The optimizers under torch's contract: what training loops, wrappers and checkpoints rely on.

The machinery of torch.testing._internal.common_optimizers (inputs, error inputs, schedulers) is used
for every class. Deviations from torch.optim: docs/python.md.
"""
import collections
import copy
import io
import pickle
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="NO torch, the optimizers are not tested")

import spillway  # noqa: E402
from spillway import _state  # noqa: E402

NAMES = [paged + rule + bits for paged in ("", "Paged") for rule in ("Adam", "AdamW")
         for bits in ("", "8bit", "32bit")]


def a_class(name):
    return getattr(spillway, name)


def a_model(seed=0, dtype=torch.float32):
    """A small net with a tensor of more than 4096 elements, and tails."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(67, 101), torch.nn.Tanh(),
                               torch.nn.Linear(101, 7)).to(dtype)


def train(model, optimizer, steps, seed=0, before_step=lambda: None, after_step=lambda: None):
    """The losses of some steps on random rows, and the optimizer after them."""
    random = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 67, generator=random).to(dtype)
        optimizer.zero_grad()
        loss = (model(x).float() - 1).pow(2).mean()
        loss.backward()
        before_step()
        optimizer.step()
        after_step()
        losses.append(loss.item())
    return losses


def same_parameters(one, other):
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters()))


# ------------------------------------------------------------------ torch's own optimizer tests --

def _torch_machinery():
    pytest.importorskip("expecttest", reason="NO expecttest, torch's inputs are not used")
    return pytest.importorskip("torch.testing._internal.common_optimizers")


def optimizer_info(name):
    """An OptimizerInfo as torch keeps of its own; what Adam's inputs have that means nothing here
    (maximize, amsgrad, foreach, capturable) is not an argument of ours."""
    machinery = _torch_machinery()

    def inputs(device, dtype=None):
        kept = [one for one in machinery.optim_inputs_func_adam(device, dtype)
                if not {"maximize", "amsgrad", "capturable"} & set(one.kwargs)]
        return kept + [machinery.OptimizerInput(params=None, kwargs=dict(lr=torch.tensor(0.01)),
                                                desc="Tensor lr")]

    def errors(device, dtype):
        return [one for one in machinery.optim_error_inputs_func_adam(device, dtype)
                if "foreach" not in one.optimizer_error_input.kwargs
                and "both floats" not in one.error_regex]

    return machinery.OptimizerInfo(a_class(name), optim_inputs_func=inputs,
                                   optim_error_inputs_func=errors, supported_impls=(),
                                   not_og_supported_flags=(), supports_complex=False)


@pytest.mark.parametrize("name", NAMES)
def test_torchs_error_inputs_are_refused(name):
    info = optimizer_info(name)
    for one in info.optim_error_inputs_func("cpu", torch.float32):
        given = one.optimizer_error_input
        params = given.params if given.params is not None else [torch.nn.Parameter(torch.ones(1))]
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            with pytest.raises(one.error_type, match=one.error_regex):
                info.optim_cls(params, **given.kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_every_input_and_scheduler_goes_the_right_way(name):
    """The loss of a small least-squares problem falls; parameters contiguous and not."""
    info = optimizer_info(name)
    for given in info.optim_inputs_func("cpu", torch.float32):
        for schedulers in [[], *info.scheduler_inputs]:
            for transposed in (False, True):
                torch.manual_seed(3)
                weight = torch.randn(5, 10)
                weight = torch.nn.Parameter(weight.t() if transposed else weight)
                target = torch.randn_like(weight)
                optimizer = info.optim_cls([weight], **copy.deepcopy(given.kwargs))
                made = [make(optimizer) for make in schedulers]
                first = None
                for _ in range(40):
                    optimizer.zero_grad()
                    loss = (weight - target).pow(2).sum()
                    loss.backward()
                    first = loss.item() if first is None else first
                    optimizer.step()
                    for scheduler in made:
                        is_plateau = "Plateau" in type(scheduler).__name__
                        scheduler.step(*([loss] if is_plateau else []))
                assert loss.item() < first, (given.desc, transposed)


@pytest.mark.parametrize("name", NAMES)
def test_fp32_state_trains_as_torch_and_8bit_nearly(name):
    losses = {}
    for key, make in (("torch", lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.02)),
                      ("ours", lambda p: a_class(name)(p, lr=1e-2, weight_decay=0.02))):
        model = a_model()
        losses[key] = train(model, make(model.parameters()), 20)
    worst = max(abs(a - b) / a for a, b in zip(losses["torch"], losses["ours"]))
    assert worst < (2e-2 if name.endswith("8bit") else 1e-6)


@pytest.mark.parametrize("make", [
    lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1e-2, total_steps=24),
    lambda o: torch.optim.lr_scheduler.CyclicLR(o, 1e-3, 1e-2, step_size_up=5)])
def test_schedules_that_cycle_betas_are_followed_as_torch_does_and_resumed(make):
    losses = {}
    for cls in (torch.optim.AdamW, spillway.PagedAdamW32bit):
        model = a_model()
        optimizer = cls(model.parameters(), lr=1e-3)
        scheduler = make(optimizer)
        losses[cls] = [train(model, optimizer, 1, seed=i, after_step=scheduler.step)[0]
                       for i in range(20)]
    worst = max(abs(a - b) / a for a, b in zip(*losses.values()))
    assert worst < 2e-6
    copied, again = copy.deepcopy((model, optimizer))
    assert train(model, optimizer, 3) == train(copied, again, 3)
    assert same_parameters(model, copied)


# -------------------------------------------------------------------------------- arguments --

@pytest.mark.parametrize("arguments, word", [
    (dict(amsgrad=True), "amsgrad"), (dict(args=1), "args"), (dict(optim_bits=16), "optim_bits"),
    (dict(state_mem="lots"), "state_mem"), (dict(state_mem="120%"), "state_mem"),
    (dict(occupancy=1.5), "occupancy"), (dict(store="disk"), "store"),
    (dict(page_size=100000), "page_size"), (dict(paging="swap"), "paging"),
    (dict(max_norm=-1), "max_norm"), (dict(eps=-1.0), "epsilon"), (dict(lr=-1.0), "learning rate"),
])
def test_arguments_that_mean_nothing_are_refused_by_name(arguments, word):
    with pytest.raises(ValueError, match=word):
        spillway.AdamW([torch.nn.Parameter(torch.ones(3))], **arguments)


@pytest.mark.parametrize("arguments, word", [
    (dict(min_8bit_size="big"), "min_8bit_size='big': a whole number"),
    (dict(min_8bit_size=-1), "min_8bit_size=-1"), (dict(min_8bit_size=None), "min_8bit_size=None"),
    (dict(occupancy="90%"), "occupancy='90%'"), (dict(lr="1e-3"), "lr='1e-3'"),
    (dict(betas=(0.9, 0.99, 0.999)), "betas=.*two numbers"), (dict(betas=0.9), "betas=0.9"),
])
def test_arguments_of_another_kind_are_refused_by_name(arguments, word):
    with pytest.raises(ValueError, match=word):
        spillway.PagedAdamW([torch.nn.Parameter(torch.ones(3))], **arguments)


@pytest.mark.parametrize("name, arguments, word", [
    ("AdamW", dict(state_mem="25%"), "state_mem='25%' with paging=\"off\""),
    ("AdamW8bit", dict(store="file:/tmp/x"), "store=.*use a Paged class"),
    ("AdamW", dict(host_mem="1GiB"), "host_mem"), ("Adam", dict(occupancy=0.5), "occupancy"),
    ("PagedAdamW", dict(paging="mapped", state_mem=0), "state_mem=0 with paging=\"mapped\""),
    ("PagedAdamW", dict(paging="unified", occupancy=0.5), "occupancy"),
    ("AdamW", dict(is_paged=True, paging="off"), "is_paged"),
])
def test_options_without_a_meaning_for_the_way_to_page_are_refused(name, arguments, word):
    with pytest.raises(ValueError, match=word):
        a_class(name)([torch.nn.Parameter(torch.ones(3))], **arguments)


@pytest.mark.parametrize("key, value", [("optim_bits", 8), ("max_norm", 1.0), ("state_mem", "25%"),
                                        ("min_8bit_size", 1), ("amsgrad", True),
                                        ("maximize", True)])
def test_what_cannot_differ_by_group_is_refused_in_one(key, value):
    with pytest.raises(ValueError, match=key):
        spillway.PagedAdamW([{"params": [torch.nn.Parameter(torch.ones(3))], key: value}])


def test_a_class_with_bits_takes_no_other():
    for name in ("AdamW8bit", "PagedAdamW32bit"):
        with pytest.raises(ValueError, match="optim_bits"):
            a_class(name)([torch.nn.Parameter(torch.ones(3))], optim_bits=8)


@pytest.mark.parametrize("name", NAMES + ["PagedLion8bit", "AdEMAMix", "PagedAdEMAMix32bit"])
def test_help_lists_the_arguments_of_every_class(name):
    import inspect
    text = a_class(name).__doc__
    arguments = set(inspect.signature(a_class(name)).parameters)
    assert {"state_mem", "optim_bits"} < arguments
    assert all(argument in text for argument in arguments)


def test_default_decay_and_paging_are_those_of_the_name():
    params = [torch.nn.Parameter(torch.ones(3))]
    assert spillway.Adam(params).defaults["weight_decay"] == 0
    assert spillway.PagedAdamW8bit(params).defaults["weight_decay"] == 1e-2
    for make, way in ((spillway.AdamW, "off"), (spillway.PagedAdamW, "mapped")):
        params[0].grad = torch.ones(3)
        optimizer = make(params)
        optimizer.step()
        assert optimizer.pager_stats()[0]["paging"] == {"off": 4, "mapped": 2}[way]


def test_8bit_is_decided_by_size_and_mark():
    big, small, kept = (torch.nn.Parameter(torch.ones(n)) for n in (4096, 4095, 5000))
    spillway.keep_32bit(kept)
    optimizer = spillway.AdamW8bit([big, small, kept])
    for p in (big, small, kept):
        p.grad = torch.ones_like(p)
    optimizer.step()
    bits = [optimizer.state[p]["state1"].dtype for p in (big, small, kept)]
    assert bits == [torch.uint8, torch.float32, torch.float32]


def test_a_mark_counts_in_a_group_that_comes_after_one_went():
    optimizer = spillway.AdamW8bit([{"params": [torch.nn.Parameter(torch.ones(3))]}
                                    for _ in range(2)])
    optimizer.param_groups.pop()
    kept = spillway.keep_32bit(torch.nn.Parameter(torch.ones(5000)))
    kept.grad = torch.ones(5000)
    optimizer.add_param_group({"params": [kept]})
    optimizer.step()
    assert optimizer.state[kept]["state1"].dtype == torch.float32


def test_other_dtypes_are_refused():
    for dtype in (torch.float64, torch.complex64):
        with pytest.raises(TypeError, match=str(dtype)):
            spillway.AdamW([torch.nn.Parameter(torch.ones(3, dtype=dtype))])


def test_import_needs_no_torch():
    code = "import sys, spillway; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code],
                          env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


# ------------------------------------------------------------------------------- the same bits --

@pytest.mark.parametrize("name", ["PagedAdamW8bit", "PagedAdamW32bit"])
def test_parameters_do_not_depend_on_what_was_paged(name, tmp_path):
    ways = [dict(paging="off"), dict(paging="mapped"), dict(paging="copy", state_mem=0),
            dict(paging="copy", state_mem="50%", page_size="128KiB"),
            dict(paging="copy", store=f"file:{tmp_path}/state", state_mem="25%")]
    models = []
    for options in ways:
        models.append(a_model())
        train(models[-1], a_class(name)(models[-1].parameters(), lr=1e-2, **options), 6)
    assert all(same_parameters(models[0], model) for model in models[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["PagedAdamW8bit", "PagedAdamW32bit"])
def test_a_step_of_every_type_is_the_fp32_step_rounded(name, dtype):
    """From equal values, with gradients that all three types hold exactly."""
    grad = torch.linspace(-1, 1, 4097).to(torch.float16).to(torch.bfloat16)
    stepped = []
    for kind in (dtype, torch.float32):
        p = torch.nn.Parameter(grad.to(kind, copy=True))
        p.grad = grad.to(kind, copy=True)
        a_class(name)([p], lr=1e-2).step()
        stepped.append(p.detach())
    assert stepped[0].dtype == dtype and torch.equal(stepped[0], stepped[1].to(dtype))


def test_max_norm_is_clip_grad_norm():
    clipped, plain = a_model(), a_model()
    train(clipped, spillway.AdamW(clipped.parameters(), lr=1e-2, max_norm=0.1), 8)
    train(plain, spillway.AdamW(plain.parameters(), lr=1e-2), 8,
          before_step=lambda: torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1))
    for p, q in zip(clipped.parameters(), plain.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------- a step --

def test_no_gradient_leaves_a_parameter_and_its_state_alone():
    one, other = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    optimizer = spillway.AdamW([one, other])
    one.grad = torch.ones(5)
    optimizer.step()
    assert torch.equal(other, torch.ones(5)) and not torch.equal(one, torch.ones(5))
    assert other not in optimizer.state and optimizer.state[one]["step"] == 1
    assert list(optimizer.state_dict()["state"]) == [0]


def test_sparse_gradients_are_refused_and_nothing_changes():
    table = torch.nn.Embedding(10, 4, sparse=True)
    before = table.weight.detach().clone()
    optimizer = spillway.AdamW(table.parameters())
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert torch.equal(table.weight, before)


def test_gradients_that_are_not_contiguous():
    results = []
    for spread in (False, True):
        p = torch.nn.Parameter(torch.arange(12.0).view(3, 4))
        grad = torch.linspace(-1, 1, 12).view(3, 4)
        p.grad = grad.t().contiguous().t() if spread else grad
        optimizer = spillway.AdamW([p], lr=0.1)
        optimizer.step()
        results.append(p.detach().clone())
    assert torch.equal(*results)


def test_copies_of_gradients_do_not_outlive_the_step():
    import gc
    p = torch.nn.Parameter(torch.zeros(301, 77))
    p.grad = torch.ones(77, 301).t()
    optimizer = spillway.AdamW([p])
    optimizer.step()
    p.grad = None
    alive = [one for one in gc.get_objects() if type(one) is torch.Tensor
             and one.shape == (301, 77)]
    assert not alive


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = spillway.AdamW([p])

    def closure():
        optimizer.zero_grad()
        loss = p.pow(2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert optimizer.state[p]["step"] == 1


def test_hooks_run_in_their_order():
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer, calls = spillway.AdamW([p]), []
    optimizer.register_step_pre_hook(lambda *unused: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *unused: calls.append("post"))
    optimizer.register_state_dict_pre_hook(lambda *unused: calls.append("out"))
    optimizer.register_state_dict_post_hook(lambda *unused: calls.append("out after"))
    optimizer.register_load_state_dict_pre_hook(lambda *unused: calls.append("in"))
    optimizer.register_load_state_dict_post_hook(lambda *unused: calls.append("in after"))
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["pre", "post", "out", "out after", "in", "in after"]


def test_param_groups_are_read_at_every_step_and_may_be_added():
    ours, theirs = a_model(), a_model()
    a, b = spillway.AdamW(ours[0].parameters(), lr=1e-2), torch.optim.AdamW(theirs[0].parameters(),
                                                                           lr=1e-2)
    for optimizer, model in ((a, ours), (b, theirs)):
        train(model, optimizer, 3)
        optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 3e-2,
                                   "betas": (0.8, 0.99), "weight_decay": 0.1})
        model.zero_grad()
        train(model, optimizer, 3, seed=1)
        optimizer.param_groups[0]["lr"] = 1e-3
        optimizer.param_groups[1]["weight_decay"] = 0.0
        train(model, optimizer, 3, seed=2)
    for p, q in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_groups_may_be_taken_out_reordered_and_their_members_moved():
    ours, theirs = a_model(), a_model()
    pairs = []
    for make, model in ((spillway.PagedAdamW32bit, ours), (torch.optim.AdamW, theirs)):
        pairs.append((model, make([{"params": [p], "lr": 10.0 ** -i} for i, p in
                                   enumerate(model.parameters(), 1)])))
    edits = [
        lambda groups: groups.reverse(),
        lambda groups: groups[0]["params"].append(groups[3]["params"].pop()),
        lambda groups: groups.pop(1),
        lambda groups: groups[-1].update(lr=0.5),
    ]
    for edit in [lambda groups: None, *edits]:
        for model, optimizer in pairs:
            edit(optimizer.param_groups)
            train(model, optimizer, 2)
        for p, q in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_parameters_swapped_in_a_group_before_the_first_step():
    """accelerate and FSDP2 do it; what keep_32bit marked stays marked by its place."""
    old = spillway.keep_32bit(torch.nn.Parameter(torch.ones(5000)))
    new = torch.nn.Parameter(torch.ones(5000))
    optimizer = spillway.AdamW8bit([old])
    optimizer.param_groups[0]["params"] = [new]
    new.grad = torch.ones(5000)
    optimizer.step()
    assert optimizer.state[new]["state1"].dtype == torch.float32
    assert torch.equal(old, torch.ones(5000)) and not torch.equal(new, torch.ones(5000))


def test_a_parameter_may_get_other_memory_but_not_another_size():
    p = torch.nn.Parameter(torch.ones(5))
    optimizer = spillway.AdamW([p], lr=0.5, weight_decay=0)
    for _ in range(2):
        p.data = p.data.clone()
        p.grad = torch.ones(5)
        optimizer.step()
    assert torch.allclose(p, torch.zeros(5), atol=1e-5)
    p.data, p.grad = torch.ones(6), None
    p.grad = torch.ones(6)
    with pytest.raises(RuntimeError, match="5 elements"):
        optimizer.step()


@pytest.mark.parametrize("fused", [True, False])
def test_grad_scaler_both_ways(fused):
    """With its scale and verdict handed over, and with unscaled gradients; an overflow skips."""
    class Optimizer(spillway.AdamW):
        _step_supports_amp_scaling = fused

    ours, plain = a_model(), a_model()
    optimizer, reference = (Optimizer(ours.parameters(), lr=1e-2),
                            spillway.AdamW(plain.parameters(), lr=1e-2))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    train(plain, reference, 4)
    random = torch.Generator().manual_seed(0)
    for step in range(5):
        x = torch.randn(16, 67, generator=random)
        optimizer.zero_grad()
        loss = (ours(x) - 1).pow(2).mean()
        if step == 4:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    for p, q in zip(ours.parameters(), plain.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
    assert scaler.get_scale() == 512.0
    assert optimizer.state[next(ours.parameters())]["step"] == 4


def test_compile_leaves_the_step_outside():
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = spillway.AdamW([p])
    step = torch.compile(optimizer.step, backend="eager")
    step()
    assert optimizer.state[p]["step"] == 1


def test_a_step_after_a_fork_is_refused_and_a_new_optimizer_works():
    code = """
import os, sys, torch, spillway
p = torch.nn.Parameter(torch.ones(5000)); p.grad = torch.ones(5000)
optimizer = spillway.AdamW8bit([p]); optimizer.step()
if os.fork() == 0:
    try:
        optimizer.step()
    except RuntimeError as error:
        fresh = spillway.AdamW8bit([p]); fresh.step()
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120,
                          env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


def test_threads_that_step_and_save_one_optimizer_take_turns():
    code = """
import sys, threading, torch, spillway
p = torch.nn.Parameter(torch.zeros(1 << 18)); p.grad = torch.ones(1 << 18)
optimizer = spillway.PagedAdamW32bit([p], lr=0.5, weight_decay=0, paging="copy", state_mem=0)
optimizer.step()
def work(what):
    for _ in range(20):
        what()
threads = [threading.Thread(target=work, args=[what], daemon=True) for what in
           (optimizer.step, optimizer.step, optimizer.state_dict)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
sys.exit(any(thread.is_alive() for thread in threads) or optimizer.state[p]["step"] != 41 or
         not torch.allclose(p, torch.full_like(p, -20.5), rtol=1e-4))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120,
                          env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


def test_a_forked_child_neither_reads_the_parents_state_nor_closes_its_store(tmp_path):
    code = f"""
import os, sys, torch, spillway
p = torch.nn.Parameter(torch.ones(1 << 20)); p.grad = torch.ones(1 << 20)
optimizer = spillway.PagedAdamW32bit([p], store="file:{tmp_path}/state", state_mem=0)
optimizer.step()
child = os.fork()
if child == 0:
    try:
        optimizer.state_dict()
    except RuntimeError as error:
        del optimizer
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
optimizer.step()
sys.exit(status)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120,
                          env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


# ------------------------------------------------------------------------------- checkpoints --

OPTIONS = [dict(), dict(paging="copy", state_mem=0)]


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "nothing resident"])
@pytest.mark.parametrize("name", ["AdamW32bit", "PagedAdamW8bit"])
def test_a_loaded_state_goes_on_bit_for_bit(name, options):
    model = a_model()
    optimizer = a_class(name)(model.parameters(), lr=1e-2, **options)
    train(model, optimizer, 4)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(model)
    loaded = a_class(name)(other.parameters(), lr=5.0, **options)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert loaded.param_groups[0]["lr"] == 1e-2
    assert all(not tensor.is_cuda and type(tensor) is torch.Tensor
               for entry in loaded.state_dict()["state"].values()
               for tensor in entry[_state.NESTED].values())
    assert train(model, optimizer, 4, seed=9) == train(other, loaded, 4, seed=9)
    assert same_parameters(model, other)
    if options:
        assert loaded.pager_stats()[0]["resident_bytes"] == 0


@pytest.mark.parametrize("way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))],
                         ids=["deepcopy", "pickle"])
def test_a_copy_is_another_optimizer_in_the_same_state(way):
    model = a_model()
    optimizer = spillway.PagedAdamW8bit(model.parameters(), lr=1e-2, state_mem="1MiB")
    train(model, optimizer, 3)
    other, copied = way((model, optimizer))
    assert train(model, optimizer, 3, seed=5) == train(other, copied, 3, seed=5)
    assert same_parameters(model, other)


def test_state_is_there_for_those_who_look():
    """torch.distributed.checkpoint takes a fake step where optimizer.state is empty."""
    model = a_model()
    optimizer = spillway.AdamW8bit(model.parameters())
    assert not optimizer.state
    train(model, optimizer, 1)
    weight = model[0].weight
    state = optimizer.state[weight]
    assert set(state) == {"step", "state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2"}
    assert state["state1"].shape == weight.shape and state["absmax1"].shape == (27,)
    state["absmax1"] = torch.full((27,), 2.0)
    assert torch.equal(optimizer.state[weight]["absmax1"], torch.full((27,), 2.0))


@pytest.mark.parametrize("name", ["AdamW32bit", "PagedAdamW8bit"])
@pytest.mark.parametrize("reset", [
    lambda optimizer: optimizer.state.clear(),
    lambda optimizer: setattr(optimizer, "state", collections.defaultdict(dict)),
    lambda optimizer: [optimizer.state.pop(p) for p in list(optimizer.state)]])
def test_state_that_is_taken_out_begins_anew(name, reset):
    model = a_model()
    optimizer = a_class(name)(model.parameters(), lr=1e-2)
    train(model, optimizer, 3)
    reset(optimizer)
    assert optimizer.state_dict()["state"] == {}
    other = copy.deepcopy(model)
    fresh = a_class(name)(other.parameters(), lr=1e-2)
    assert train(model, optimizer, 3) == train(other, fresh, 3)
    assert len(optimizer.state) == 4 and same_parameters(model, other)


def test_state_that_is_put_under_another_parameter_goes_on():
    """What pruning and growing do: a new parameter in the group, the old one's state cut to it."""
    after = []
    for make, keys in ((spillway.AdamW, ("state1", "state2")),
                       (torch.optim.AdamW, ("exp_avg", "exp_avg_sq"))):
        torch.manual_seed(0)
        old = torch.nn.Parameter(torch.randn(6, 3))
        optimizer = make([old], lr=0.1)
        old.grad = torch.randn(6, 3)
        optimizer.step()
        state = dict(optimizer.state.pop(old))
        new = torch.nn.Parameter(old.detach()[::2].clone())
        state.update((key, state[key][::2].clone()) for key in keys)
        optimizer.param_groups[0]["params"] = [new]
        optimizer.state[new] = state
        new.grad = torch.randn(3, 3)
        optimizer.step()
        assert optimizer.state[new]["step"] == 2
        after.append(new.detach())
    torch.testing.assert_close(*after)


def test_a_flattened_state_that_lost_its_tensors_is_refused_with_the_way_out():
    dcp = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    model = a_model()
    optimizer = spillway.AdamW8bit(model.parameters())
    train(model, optimizer, 1)
    optimizer.zero_grad()
    options = dcp.StateDictOptions(flatten_optimizer_state_dict=True)
    saved = dcp.get_optimizer_state_dict(model, optimizer, options=options)
    with pytest.raises(ValueError, match="flatten_optimizer_state_dict.*leave it out"):
        dcp.set_optimizer_state_dict(model, optimizer, saved, options=options)


def test_an_empty_state_dict_binds_nothing():
    model = a_model()
    optimizer = spillway.AdamW8bit(model.parameters())
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.pager_stats() == []


@pytest.mark.parametrize("spoil, word", [
    (lambda d: d["state"][0].pop("step"), "step"),
    (lambda d: d["state"].__setitem__(0, {"step": 1, "momentum": torch.ones(3)}), "momentum"),
    (lambda d: d["state"][0][_state.NESTED].__setitem__("state1", torch.ones(3)), "elements"),
    (lambda d: d["state"][0][_state.NESTED].pop("absmax1"), "absmax1"),
    (lambda d: d["param_groups"][0]["params"].pop(), "groups"),
    (lambda d: d["param_groups"][0].__setitem__("amsgrad", True), "amsgrad"),
    (lambda d: d["param_groups"][0].__setitem__("maximize", True), "maximize"),
])
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_lost(spoil, word):
    model = a_model()
    optimizer = spillway.AdamW8bit(model.parameters(), lr=1e-2)
    train(model, optimizer, 2)
    saved = optimizer.state_dict()
    kept = copy.deepcopy(saved["state"])
    spoil(saved)
    with pytest.raises(ValueError, match=word):
        optimizer.load_state_dict(saved)
    now = optimizer.state_dict()["state"]
    assert all(torch.equal(now[i][_state.NESTED][k], kept[i][_state.NESTED][k])
               for i in now for k in now[i][_state.NESTED])


def test_torchs_own_state_comes_in_and_goes_out():
    theirs = a_model()
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    train(theirs, reference, 5)
    ours = copy.deepcopy(theirs)
    optimizer = spillway.PagedAdamW32bit(ours.parameters())
    optimizer.load_state_dict(reference.state_dict())
    back = copy.deepcopy(theirs)
    returned = torch.optim.AdamW(back.parameters())
    returned.load_state_dict(spillway.to_torch(optimizer.state_dict()))
    for p, q in zip(theirs.parameters(), back.parameters()):
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(reference.state[p][key], returned.state[q][key])
    a, b = train(theirs, reference, 4, seed=3), train(ours, optimizer, 4, seed=3)
    assert max(abs(x - y) / x for x, y in zip(a, b)) < 1e-6


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("bits", ["8bit", "32bit"])
def test_bitsandbytes_state_comes_in_and_goes_out(bits, nested):
    bnb = pytest.importorskip("bitsandbytes", reason="NO bitsandbytes, interchange is not tested")
    theirs = a_model()
    reference = getattr(bnb.optim, "AdamW" + bits)(theirs.parameters(), lr=1e-2)
    train(theirs, reference, 5)
    saved = reference.state_dict()
    if not nested:
        saved["state"] = {i: {"step": s["step"], **s[_state.NESTED]}
                          for i, s in saved["state"].items()}
    ours = copy.deepcopy(theirs)
    optimizer = a_class("PagedAdamW" + bits)(ours.parameters())
    optimizer.load_state_dict(saved)
    out = spillway.to_bitsandbytes(optimizer.state_dict(), nested)
    for i, entry in out["state"].items():
        mine, before = ({**e, **e.get(_state.NESTED, {})} for e in (entry, saved["state"][i]))
        assert mine["step"] == before["step"]
        for key in ("state1", "state2", "absmax1", "absmax2"):
            assert (key in mine) == (key in before)
            assert key not in mine or torch.equal(mine[key], before[key]), key
    back = copy.deepcopy(ours)
    returned = getattr(bnb.optim, "AdamW" + bits)(back.parameters(), lr=1e-2)
    returned.load_state_dict(out)
    a, b = train(theirs, reference, 3, seed=3), train(back, returned, 3, seed=3)
    assert a == b
    c = train(ours, optimizer, 3, seed=3)
    assert max(abs(x - y) / x for x, y in zip(a, c)) < 1e-3


def test_old_blocks_of_2048_are_put_into_blocks_of_256():
    n = 5000
    torch.manual_seed(0)
    tables = _state.tables()
    codes = [torch.randint(0, 256, (n,), dtype=torch.uint8) for _ in range(2)]
    absmax = [torch.rand(3) + 0.5 for _ in range(2)]
    saved = {"state": {0: {"step": 7, "state1": codes[0], "state2": codes[1], "qmap1": tables[0],
                           "qmap2": tables[1], "absmax1": absmax[0], "absmax2": absmax[1]}},
             "param_groups": [{"params": [0], "lr": 1e-3}]}
    p = torch.nn.Parameter(torch.zeros(n))
    optimizer = spillway.AdamW8bit([p])
    optimizer.load_state_dict(saved)
    moments = _state.parse(optimizer.state_dict()["state"][0], n, "p")
    for new, code, table, scale in zip(_state.as_floats(moments), codes, tables, absmax):
        old = _state.dequantise(code, table, scale, 2048)
        blocks = torch.nn.functional.pad(old.abs(), (0, -n % 256)).view(-1, 256).amax(1)
        tolerance = blocks.repeat_interleave(256)[:n] * 0.02
        assert ((new - old).abs() <= tolerance).all()


def test_quantise_is_the_librarys_nearest_code():
    """What a step would store of the same values: one step from zero with beta1 = 0 leaves m = g."""
    torch.manual_seed(0)
    g = torch.randn(4096)
    p = torch.nn.Parameter(torch.zeros(4096))
    p.grad = g.clone()
    optimizer = spillway.AdamW8bit([p], betas=(0.0, 0.0))
    optimizer.step()
    codes, absmax = _state.quantise(g, _state.tables()[0])
    assert torch.equal(optimizer.state[p]["absmax1"], absmax)
    assert torch.equal(optimizer.state[p]["state1"], codes)


# ----------------------------------------------------------------------------------- memory --

def test_memory_summary_names_what_there_is():
    p = torch.nn.Parameter(torch.ones(5000))
    p.grad = torch.ones(5000)
    optimizer = spillway.PagedAdamW8bit([p], paging="copy", state_mem=0)
    optimizer.step()
    text = spillway.memory_summary()
    assert "cpu: state" in text and "paging copy" in text and "given back" in text


def test_what_was_reserved_before_there_was_state_is_kept_free():
    p = torch.nn.Parameter(torch.ones(50000))
    p.grad = torch.ones(50000)
    resident = []
    for size in (1 << 60, 0):
        spillway.reserve(size)
        optimizer = spillway.PagedAdamW32bit([p], paging="copy")
        for _ in range(3):
            optimizer.step()
        resident.append(optimizer.pager_stats()[0]["resident_bytes"])
    assert resident[0] == 0 < resident[1]


@pytest.mark.parametrize("arguments, word", [(("3GB",), "size='3GB'"), ((1, "mps"), "'mps'")])
def test_a_reserve_that_cannot_be_meant_is_refused(arguments, word):
    with pytest.raises(ValueError, match=word):
        spillway.reserve(*arguments)


def test_closed_optimizers_leave_nothing_behind_and_wait_for_no_collector():
    import gc

    from spillway import _engine
    gc.collect()
    before = len(_engine.live)
    gc.disable()
    p = torch.nn.Parameter(torch.ones(5000))
    p.grad = torch.ones(5000)
    for _ in range(3):
        optimizer = spillway.AdamW8bit([p])
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        del optimizer
    gc.enable()
    assert len(_engine.live) == before
