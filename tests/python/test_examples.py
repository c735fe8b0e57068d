"""The examples for Python run as their first lines say, and stay short."""
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "examples", "python")
NEEDS = {"plain_torch.py": ["torch"], "fsdp2.py": ["torch"],
         "transformers_trainer.py": ["transformers", "accelerate"],
         "trl_sft.py": ["trl", "datasets", "peft"]}


def command(name):
    """As the example's own docstring gives it, with this interpreter."""
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        line = re.search(rf"^    ((?:python|torchrun) .*{name})$", file.read(), re.M).group(1)
    program, *words = line.split()
    if program == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", *words]
    return [sys.executable, *words]


def test_every_example_is_run():
    assert sorted(NEEDS) == sorted(n for n in os.listdir(FOLDER) if n.endswith(".py"))


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_example(build_dir, name):
    for module in NEEDS[name]:
        pytest.importorskip(module, reason=f"NO {module}: examples/python/{name} is not run")
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        assert len(file.readlines()) < 60
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"),
                   "SPILLWAY_LIB": os.path.join(build_dir, "src", "libspillway.so"),
                   "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command(name), cwd=ROOT, env=environment, text=True,
                          capture_output=True, timeout=180)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss'?:? +'?([0-9.]+)", done.stdout)]
    assert len(losses) >= 3 and losses[2] < losses[0], done.stdout
    assert re.search(r"state [0-9.]+ .iB in [0-9]+ pages", done.stdout)
