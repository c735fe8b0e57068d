"""The Trainer's optimizer names mean Spillway's classes, in every trainer that asks the Trainer."""
import collections
import importlib
import inspect
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="NO transformers: trainers not tested")
METHOD = "get_optimizer_cls_and_kwargs"


@pytest.fixture(scope="module", autouse=True)
def library(build_dir):
    os.environ.setdefault("SPILLWAY_LIB", os.path.join(build_dir, "src", "libspillway.so"))


@pytest.fixture
def trainers(monkeypatch):
    trainers = importlib.import_module("spillway.trainers")
    monkeypatch.setattr(trainers, "_said", set())
    monkeypatch.delenv(trainers.ENVIRONMENT, raising=False)
    trainers.patch()
    yield trainers
    trainers.unpatch()


def arguments(optim, optim_args=None):
    """What of TrainingArguments the choice reads."""
    return SimpleNamespace(optim=optim, optim_args=optim_args, learning_rate=1e-2, adam_beta1=0.8,
                           adam_beta2=0.95, adam_epsilon=1e-6)


def python(code, **environment):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env=environment, timeout=300)


def tiny_llama(tie=False):
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=160, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tie, pad_token_id=0))


def rows(n=16, length=12):
    """Counting from somewhere: learnt within a few steps."""
    ids = [(7 * row + torch.arange(length)) % 40 + 3 for row in range(n)]
    return [dict(input_ids=row, labels=row) for row in ids]


def settings(folder, **options):
    options = {"optim": "paged_adamw_8bit", "max_steps": 4, "learning_rate": 1e-2,
               "logging_steps": 1, "save_strategy": "no", **options}
    return transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, report_to=[], use_cpu=True,
        disable_tqdm=True, lr_scheduler_type="constant", **options)


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def inner(trainer):
    """The optimizer itself: accelerate hands out a wrapper."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


# ------------------------------------------------------------------------------------ choice --


@pytest.mark.parametrize("name, ours", [
    ("paged_adamw_8bit", "PagedAdamW8bit"), ("paged_adamw_32bit", "PagedAdamW32bit"),
    ("paged_adamw", "PagedAdamW"), ("adamw_8bit", "AdamW8bit"), ("adamw_bnb_8bit", "AdamW8bit"),
    ("lion_8bit", "Lion8bit"), ("lion_32bit", "Lion32bit"), ("paged_lion_8bit", "PagedLion8bit"),
    ("paged_lion_32bit", "PagedLion32bit"), ("ademamix", "AdEMAMix32bit"),
    ("ademamix_8bit", "AdEMAMix8bit"), ("paged_ademamix_8bit", "PagedAdEMAMix8bit"),
    ("paged_ademamix_32bit", "PagedAdEMAMix32bit")])
def test_a_name_is_our_class(trainers, caplog, name, ours):
    import spillway
    cls, options = getattr(transformers.Trainer, METHOD)(arguments(name))
    assert cls is getattr(spillway, ours)
    expected = {"Lion": dict(lr=1e-2, betas=(0.8, 0.95)),
                "AdEM": dict(lr=1e-2, betas=(0.8, 0.95, 0.9999), eps=1e-6)}
    assert options == expected.get(ours.replace("Paged", "")[:4],
                                   dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-6))
    assert cls([torch.nn.Parameter(torch.ones(3))], **options)
    assert f"spillway: optim={name} is spillway.{ours}" in caplog.text


def test_a_name_may_be_the_trainers_enum(trainers):
    import spillway
    name = transformers.training_args.OptimizerNames("paged_adamw_8bit")
    assert getattr(transformers.Trainer, METHOD)(arguments(name))[0] is spillway.PagedAdamW8bit


def test_other_names_pass_through(trainers, tmp_path):
    args = settings(tmp_path, optim="adamw_torch")
    cls, options = getattr(transformers.Trainer, METHOD)(args, tiny_llama())
    assert cls is torch.optim.AdamW and options["lr"] == 1e-2


@pytest.mark.parametrize("name, given", [
    ("lion_8bit", None), ("paged_lion_32bit", None), ("ademamix", None),
    ("ademamix_8bit", "beta1=0.7,beta3=0.99,alpha=2,t_alpha=5,t_beta3=9,eps=1e-5"),
    ("paged_ademamix_32bit", "beta2=0.9,t_beta3=100")])
def test_hyper_parameters_are_those_that_transformers_would_give(trainers, tmp_path, name, given):
    pytest.importorskip("bitsandbytes")
    args = settings(tmp_path, optim=name, optim_args=given, adam_beta2=0.95, adam_epsilon=1e-6)
    _, ours = getattr(transformers.Trainer, METHOD)(args, tiny_llama())
    trainers.unpatch()
    _, theirs = getattr(transformers.Trainer, METHOD)(args, tiny_llama())
    made = {key: theirs[key] for key in theirs if key not in ("optim_bits", "is_paged")}
    defaults = {} if "lion" in name else {"alpha": 5.0}
    assert {**defaults, **ours} == made


def test_every_name_is_one_that_transformers_has_or_had(trainers):
    known = {name.value for name in transformers.training_args.OptimizerNames} | {"paged_adamw"}
    assert set(trainers.CLASSES) <= known
    assert {name for name in known if "lion" in name or "ademamix" in name} <= set(trainers.CLASSES)


@pytest.mark.parametrize("given", [
    "state_mem = 25%, occupancy=80%,page_size=1048576,max_norm=0.5,store=file:/x/y=z,"
    "paging=copy,host_mem=2GiB,min_8bit_size=128",
    dict(state_mem="25%", occupancy=0.8, page_size=1 << 20, max_norm=0.5, store="file:/x/y=z",
         paging="copy", host_mem="2GiB", min_8bit_size=128)])
def test_optim_args_get_their_types(trainers, given):
    assert trainers.parse_options(given) == dict(
        state_mem="25%", occupancy=0.8, page_size=1 << 20, max_norm=0.5, store="file:/x/y=z",
        paging="copy", host_mem="2GiB", min_8bit_size=128)


@pytest.mark.parametrize("given, says", [
    ("state_mme=1", "state_mme is not known to Spillway; known are decay_order, host_mem, max_norm"),
    ({"beta3": 1}, "beta3 is not known"),
    ("max_norm=much", "max_norm=much: a number is needed"),
    ("paging=magic", "paging=magic: auto or copy or"),
    ("state_mem", "'state_mem' is not of the form key=value")])
def test_optim_args_that_cannot_be_meant_are_refused(trainers, given, says):
    with pytest.raises(ValueError) as error:
        getattr(transformers.Trainer, METHOD)(arguments("paged_adamw_8bit", given))
    assert says in str(error.value)


def test_optim_args_go_before_those_of_the_environment(trainers, monkeypatch):
    monkeypatch.setenv(trainers.ENVIRONMENT, "state_mem=25%,max_norm=2")
    _, options = getattr(transformers.Trainer, METHOD)(
        arguments("paged_adamw_8bit", "state_mem=1GiB"))
    assert options["state_mem"] == "1GiB" and options["max_norm"] == 2.0
    monkeypatch.setenv(trainers.ENVIRONMENT, "statemem=1")
    with pytest.raises(ValueError, match=f"{trainers.ENVIRONMENT}: statemem is not known"):
        getattr(transformers.Trainer, METHOD)(arguments("paged_adamw_8bit"))


@pytest.mark.parametrize("name, bits", [("paged_adamw_8bit", 32), ("adamw_8bit", 32),
                                        ("paged_adamw_32bit", None)])
def test_embeddings_keep_32_bit_state_under_8_bit_optimizers(trainers, name, bits):
    model = tiny_llama()
    getattr(transformers.Trainer, METHOD)(arguments(name), model)
    marks = {parameter: getattr(value, "_spw_state_bits", None)
             for parameter, value in model.named_parameters()}
    assert marks.pop("model.embed_tokens.weight") == bits
    assert set(marks.values()) == {None}


# ------------------------------------------------------------------------------------- patch --


def test_patch_twice_is_patch_once_and_unpatch_undoes_it(trainers):
    trainers.unpatch()
    before = inspect.getattr_static(transformers.Trainer, METHOD).__func__
    trainers.patch()
    once = getattr(transformers.Trainer, METHOD)
    trainers.patch()
    assert getattr(transformers.Trainer, METHOD) is once is not before
    assert isinstance(inspect.getattr_static(transformers.Trainer, METHOD), staticmethod)
    trainers.unpatch()
    assert getattr(transformers.Trainer, METHOD) is before
    trainers.unpatch()


def test_unpatch_also_reaches_below_another_wrapper(trainers, monkeypatch):
    pytest.importorskip("bitsandbytes")
    below = getattr(transformers.Trainer, METHOD)
    monkeypatch.setattr(transformers.Trainer, METHOD,
                        staticmethod(lambda args, model=None: below(args, model)))
    trainers.unpatch()
    cls, _ = getattr(transformers.Trainer, METHOD)(
        arguments("paged_adamw_8bit"), tiny_llama())
    assert "bitsandbytes" in str(cls)
    monkeypatch.undo()
    trainers.unpatch()


def test_patch_imports_nothing_and_waits_for_transformers():
    done = python("""
import sys
before = set(sys.modules)
from spillway import trainers
trainers.patch()
early = {"torch", "transformers", "numpy", "logging"} & (set(sys.modules) - before)
assert not early, early
import transformers, inspect
assert "transformers.trainer" not in sys.modules
method = transformers.Trainer.get_optimizer_cls_and_kwargs
assert hasattr(method, "_spillway_original")
assert "class Trainer" in inspect.getsource(transformers.Trainer)
print("patched", transformers.trainer.__spec__.loader.__class__.__name__)
""")
    assert (done.returncode, done.stdout) == (0, "patched SourceFileLoader\n"), done.stderr


@pytest.mark.parametrize("setup, seen", [
    ("", True), ("logging.basicConfig(level=logging.WARNING)", True),
    ("logging.getLogger('spillway').setLevel(logging.ERROR)", False),
    ("os.environ['RANK'] = '1'", False)])
def test_the_line_is_seen_once_unless_logging_was_told_otherwise(setup, seen):
    done = python(f"""
import logging, os
from spillway import trainers
{setup}
for _ in range(3):
    trainers.say("who it was")
""")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("spillway: who it was\n") == int(seen)


def test_a_transformers_without_the_method_stays_as_it_is(trainers, caplog):
    trainers._wrap(SimpleNamespace(Trainer=type("Trainer", (), {})))
    assert "its optimizers stay its own" in caplog.text


# --------------------------------------------------------------------------------- training --


@pytest.mark.parametrize("name, ours", [("paged_adamw_8bit", "PagedAdamW8bit"),
                                        ("paged_adamw_32bit", "PagedAdamW32bit"),
                                        ("adamw_8bit", "AdamW8bit")])
def test_the_trainer_trains_with_it(trainers, tmp_path, name, ours):
    trainer = transformers.Trainer(tiny_llama(), settings(tmp_path, optim=name, max_steps=12),
                                   train_dataset=rows())
    trainer.train()
    assert type(inner(trainer)).__name__ == ours
    assert type(inner(trainer)).__module__.startswith("spillway")
    assert losses(trainer)[-1] < losses(trainer)[0] - 0.5


def test_the_trainer_hands_over_optim_args(trainers, tmp_path):
    args = settings(tmp_path, optim_args="state_mem=50%,max_norm=1.0", max_grad_norm=0.0)
    trainer = transformers.Trainer(tiny_llama(), args, train_dataset=rows())
    trainer.train()
    assert all(0 < loss < 10 for loss in losses(trainer))


@pytest.mark.parametrize("name", ["paged_adamw_8bit", "paged_adamw_32bit"])
def test_a_resumed_run_has_the_bits_of_one_without_a_stop(trainers, tmp_path, name):
    def run(steps, resume=None):
        args = settings(tmp_path / "run", optim=name, max_steps=steps, save_strategy="steps",
                        save_steps=3)
        trainer = transformers.Trainer(tiny_llama(), args, train_dataset=rows())
        trainer.train(resume_from_checkpoint=resume)
        return trainer.model

    whole = run(6)
    resumed = run(6, str(tmp_path / "run" / "checkpoint-3"))
    for (key, ours), theirs in zip(whole.named_parameters(), resumed.parameters()):
        assert torch.equal(ours, theirs), key


# ------------------------------------------------------------------------- the other trainers --


def sft_trainer(trl, folder, model, **options):
    datasets = pytest.importorskip("datasets", reason="NO datasets: TRL not tested")
    data = datasets.Dataset.from_list([dict(input_ids=row["input_ids"].tolist())
                                       for row in rows()])
    config = trl.SFTConfig(
        output_dir=str(folder), per_device_train_batch_size=4, report_to=[], use_cpu=True,
        bf16=False, disable_tqdm=True, logging_steps=1, save_strategy="no", max_steps=8,
        optim="paged_adamw_8bit", learning_rate=1e-2, lr_scheduler_type="constant",
        dataset_kwargs={"skip_prepare_dataset": True}, **options)
    return trl.SFTTrainer(model=model, args=config, train_dataset=data,
                          processing_class=word_tokenizer())


def word_tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<pad>": 0, "<unk>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, 160)}}
    inner_tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    inner_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner_tokenizer,
                                                pad_token="<pad>", unk_token="<unk>",
                                                eos_token="</s>")


def test_trl_sft_trains_with_it(trainers, tmp_path):
    import spillway
    trl = pytest.importorskip("trl", reason="NO trl: TRL not tested")
    trainer = sft_trainer(trl, tmp_path, tiny_llama())
    trainer.train()
    assert type(inner(trainer)) is spillway.PagedAdamW8bit
    assert losses(trainer)[-1] < losses(trainer)[0]


class UnslothOrder(transformers.Trainer):
    """How UnslothTrainer makes an optimizer where embeddings have a learning rate of their own: the
    static method without a model, groups by itself."""

    def create_optimizer(self, model=None):
        cls, options = transformers.Trainer.get_optimizer_cls_and_kwargs(self.args)
        embeddings = {id(p) for n, p in self.model.named_parameters() if "embed" in n}
        split = [[p for p in self.model.parameters() if (id(p) in embeddings) == wanted]
                 for wanted in (False, True)]
        self.optimizer = cls([dict(params=split[0], lr=options["lr"], weight_decay=0.0),
                              dict(params=split[1], lr=1e-4, weight_decay=0.0)], **options)
        return self.optimizer


def test_unsloths_order_of_calls_ends_at_it(trainers, tmp_path):
    import spillway
    trainer = UnslothOrder(tiny_llama(), settings(tmp_path), train_dataset=rows())
    trainer.train()
    assert type(inner(trainer)) is spillway.PagedAdamW8bit
    assert [group["lr"] for group in inner(trainer).param_groups] == [1e-2, 1e-4]


# ---------------------------------------------------------------------------------- Axolotl --


class AxolotlOrder:
    """The order in which Axolotl calls a plugin: loaded by dotted name and made without arguments,
    `register` with the unparsed configuration, then the trainer, then post_trainer_create."""

    def __init__(self, name, cfg):
        module, cls = name.rsplit(".", 1)
        self.plugin = getattr(importlib.import_module(module), cls)()
        self.cfg = cfg
        self.plugin.register(cfg)

    def train(self, trainer):
        self.plugin.post_trainer_create(self.cfg, trainer)
        trainer.train()


def axolotl_arguments(folder, cfg):
    """optim and optim_args as Axolotl's builder hands them to TrainingArguments."""
    pairs = ",".join(f"{key}={value}" for key, value in cfg["optim_args"].items())
    return settings(folder, optim=cfg["optimizer"], optim_args=pairs)


def test_axolotls_order_of_calls_ends_at_it(trainers, tmp_path, caplog):
    import spillway
    trainers.unpatch()
    cfg = collections.defaultdict(lambda: None, optimizer="paged_adamw_8bit",
                                  optim_args=dict(state_mem="50%", max_norm=1.0))
    axolotl = AxolotlOrder("spillway.axolotl.Plugin", cfg)
    trainer = transformers.Trainer(tiny_llama(), axolotl_arguments(tmp_path, cfg),
                                   train_dataset=rows())
    axolotl.train(trainer)
    assert type(inner(trainer)) is spillway.PagedAdamW8bit
    assert "which stays" not in caplog.text
    trainer.optimizer_cls_and_kwargs = (torch.optim.SGD, {"lr": 1})
    axolotl.plugin.post_trainer_create(cfg, trainer)
    assert "which stays" in caplog.text


def test_axolotls_own_plugin_manager_and_mixin_end_at_it(trainers, tmp_path):
    import spillway
    base = pytest.importorskip("axolotl.integrations.base", exc_type=ImportError,
                               reason="NO axolotl: only its order of calls is tested")
    mixins = importlib.import_module("axolotl.core.trainers.mixins.optimizer")
    config = importlib.import_module("axolotl.cli.config")
    cfg = importlib.import_module("axolotl.utils.dict").DictDefault(
        plugins=["spillway.axolotl.Plugin"], optimizer="paged_adamw_8bit",
        optim_args={"state_mem": "50%"})
    trainers.unpatch()
    config.prepare_plugins(cfg)
    manager = base.PluginManager.get_instance()
    assert isinstance(manager.plugins["spillway.axolotl.Plugin"], base.BasePlugin)

    class Trainer(mixins.OptimizerMixin, transformers.Trainer):
        pass

    for ratio in (None, 2.0):  # with an embedding rate the mixin makes the optimizer by itself
        args = axolotl_arguments(tmp_path, cfg)
        args.loraplus_lr_ratio = args.embedding_lr = args.lr_groups = None
        args.embedding_lr_scale = ratio
        trainer = Trainer(tiny_llama(), args, train_dataset=rows())
        manager.post_trainer_create(cfg, trainer)
        trainer.train()
        assert type(inner(trainer)) is spillway.PagedAdamW8bit
