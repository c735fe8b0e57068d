"""SmolLM2-135M-Instruct with a LoRA adapter in Transformers' Trainer: the losses of torch's AdamW,
and a resume that goes on as if nothing had happened. Short rows, so that it stays cheap."""
import pytest

torch = pytest.importorskip("torch", reason="NO torch, SmolLM2 is not trained in the Trainer")
transformers = pytest.importorskip("transformers", reason="NO transformers, SmolLM2 is not trained "
                                   "in the Trainer")
peft = pytest.importorskip("peft", reason="NO peft, SmolLM2 is not trained in the Trainer")
pytest.importorskip("accelerate", reason="NO accelerate, SmolLM2 is not trained in the Trainer")

import spillway  # noqa: E402

STEPS, HALF = 20, 10
SENTENCES = [
    "A page is a fixed-size run of optimizer state, moved whole between the device and its store.",
    "When activations surge, the state gives way; when the surge has passed, it returns.",
    "The capital of France is Paris, and the river that runs through it is the Seine.",
    "Water boils at a lower temperature on a mountain, because the air presses on it less.",
    "She sold sea shells by the sea shore, and counted what she earned in the evening.",
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Rows of twenty tokens are done sooner by one thread than by two that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def rows(smollm2_dir):
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    ids = [torch.tensor(tokenizer(text)["input_ids"]) for text in SENTENCES]
    return [{"input_ids": row, "labels": row} for row in ids]


def adapted(folder):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return peft.get_peft_model(model, peft.LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))


def train(model_dir, rows, out, cls, resume=None):
    """(losses of the steps that were taken, the adapter's weights, the trainer's optimizer)."""
    arguments = transformers.TrainingArguments(
        str(out), max_steps=STEPS, per_device_train_batch_size=1, learning_rate=1e-3,
        weight_decay=0.01, lr_scheduler_type="cosine", warmup_steps=2, logging_steps=1,
        save_steps=HALF, use_cpu=True, report_to=[], disable_tqdm=True, seed=0)
    settings = dict(lr=1e-3, weight_decay=0.01)
    trainer = transformers.Trainer(adapted(model_dir), arguments, train_dataset=rows,
                                   optimizer_cls_and_kwargs=(cls, settings))
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    weights = {name: p.detach() for name, p in trainer.model.named_parameters() if p.requires_grad}
    return losses, weights, getattr(trainer.optimizer, "optimizer", trainer.optimizer)


@pytest.fixture(scope="module")
def in_32_bits(smollm2_dir, rows, tmp_path_factory):
    """(folder with checkpoints, losses, weights, optimizer) of ours in fp32 state."""
    folder = tmp_path_factory.mktemp("smollm2-trainer")
    return (folder, *train(smollm2_dir, rows, folder, spillway.PagedAdamW32bit))


def assert_resumes(model_dir, rows, folder, cls, losses, weights):
    resumed, again, _ = train(model_dir, rows, folder, cls, str(folder / f"checkpoint-{HALF}"))
    assert resumed[HALF:] == losses[HALF:] and len(resumed) == STEPS
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_losses_are_those_of_torchs_adamw(smollm2_dir, rows, in_32_bits, tmp_path):
    _, ours, weights, optimizer = in_32_bits
    theirs, _, _ = train(smollm2_dir, rows, tmp_path, torch.optim.AdamW)
    assert type(optimizer) is spillway.PagedAdamW32bit and len(optimizer.state) == len(weights)
    assert len(ours) == len(theirs) == STEPS and sum(ours[HALF:]) < 0.9 * sum(ours[:HALF])
    assert max(abs(a - b) / a for a, b in zip(theirs, ours)) < 1e-6


def test_a_resumed_run_in_fp32_state_has_the_same_losses(smollm2_dir, rows, in_32_bits):
    folder, losses, weights, _ = in_32_bits
    assert_resumes(smollm2_dir, rows, folder, spillway.PagedAdamW32bit, losses, weights)


def test_a_resumed_run_in_8bit_state_has_the_same_losses(smollm2_dir, rows, tmp_path):
    losses, weights, optimizer = train(smollm2_dir, rows, tmp_path, spillway.PagedAdamW8bit)
    kinds = {state["state1"].dtype for state in optimizer.state.values()}
    assert kinds == {torch.uint8, torch.float32}  # adapters of 4608 elements, and of 1536
    assert_resumes(smollm2_dir, rows, tmp_path, spillway.PagedAdamW8bit, losses, weights)
