"""spillway-run: the environment that it makes, and that launchers carry it into their children."""
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))), "python", "spillway")
SITE = os.path.join(PACKAGE, "_site")

# A user's script, which knows nothing of Spillway; it prints whose optimizer it was.
SCRIPT = """
import os, sys, torch, transformers
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=160, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
    num_attention_heads=4))
data = [dict(input_ids=torch.arange(8) + i, labels=torch.arange(8) + i) for i in range(16)]
args = transformers.TrainingArguments(
    output_dir=sys.argv[1], optim="paged_adamw_8bit", max_steps=3, use_cpu=True, report_to=[],
    per_device_train_batch_size=2, save_strategy="no", disable_tqdm=True,
    ddp_backend="gloo" if "WORLD_SIZE" in os.environ else None)
trainer = transformers.Trainer(model, args, train_dataset=data)
trainer.train()
optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
sys.stdout.write(f"by {type(optimizer).__module__}.{type(optimizer).__name__}\\n")
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()  # without it gloo's threads abort some exits
"""
OURS = "by spillway.optim.PagedAdamW8bit"


@pytest.fixture(scope="module")
def environment(build_dir):
    kept = {name: value for name, value in os.environ.items()
            if name not in ("LD_PRELOAD", "PYTHONPATH", "SPILLWAY_OPTIM_ARGS")}
    # The tests' own interpreter leads PATH: the commands of its packages are meant.
    return {**kept, "PYTHONPATH": os.path.dirname(PACKAGE),
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
            "SPILLWAY_LIB": os.path.join(build_dir, "src", "libspillway.so")}


@pytest.fixture
def run(environment):
    def run(*arguments, timeout=120, **more):
        command = [sys.executable, "-m", "spillway.run", *map(str, arguments)]
        # A session of its own: a launcher that hangs is ended with its workers.
        with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**environment, **more}, start_new_session=True) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)
    return run


def printed(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def seen(run):
    """The environment that a child has."""
    code = "import json, os; print(json.dumps(dict(os.environ)))"

    def seen(*options, **more):
        return json.loads(printed(run(*options, sys.executable, "-c", code, **more)))
    return seen


# ------------------------------------------------------------------------------- the command --


def test_no_command_is_a_usage_error(run):
    done = run()
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("spillway-run: no command; usage: spillway-run [")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments, status, line", [
    (["no-such-command", "--x"], 127, "spillway-run: no-such-command: command not found\n"),
    (["/"], 126, "spillway-run: /: Permission denied\n"),
    (["--optim-args"], 2, "spillway-run: --optim-args: K=V,... is missing\n"),
    (["--optim-args", "paging=magic", "true"], 2,
     "spillway-run: --optim-args: paging=magic: auto or copy or mapped or unified or off is "
     "needed\n")])
def test_what_cannot_be_run_is_one_line(run, arguments, status, line):
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", line)


def test_unknown_options_are_named(run):
    done = run("--hook", "true")
    assert done.returncode == 2 and "--hook is not an option; usage:" in done.stderr


def test_help_and_version(run):
    assert printed(run("--help")).startswith("usage: spillway-run")
    assert printed(run("--version")).startswith("spillway-run ")


def test_the_command_keeps_its_own_options_and_status(run):
    code = "import sys; print(sys.argv[1:]); sys.exit(3)"
    done = run("--no-hook", "--", sys.executable, "-c", code, "--no-hook", "--help")
    assert (done.returncode, done.stdout) == (3, "['--no-hook', '--help']\n")


def test_without_a_library_the_line_says_so(run, tmp_path):
    copy = tmp_path / "python" / "spillway"
    shutil.copytree(PACKAGE, copy)
    done = run("--version", SPILLWAY_LIB=str(tmp_path / "nowhere.so"),
               PYTHONPATH=str(tmp_path / "python"))
    assert done.returncode == 1 and "libspillway.so.0 is not beside the package" in done.stderr


# --------------------------------------------------------------------------- the environment --


def test_our_folder_leads_pythonpath_once(seen, environment):
    child = seen()
    assert child["PYTHONPATH"].split(os.pathsep) == [SITE, environment["PYTHONPATH"]]
    nested = seen("--no-hook", sys.executable, "-m", "spillway.run")
    assert nested["PYTHONPATH"] == child["PYTHONPATH"]


def test_the_hook_leads_ld_preload(seen, tmp_path):
    hook = tmp_path / "libspillway_hook.so"
    libc = "libc.so.6"  # any library that is there already
    shutil.copy(shutil.which("true"), hook)  # the loader warns of it and goes on
    assert seen(SPILLWAY_HOOK=str(hook), LD_PRELOAD=libc)["LD_PRELOAD"] == f"{hook}:{libc}"
    assert seen("--no-hook", SPILLWAY_HOOK=str(hook), LD_PRELOAD=libc)["LD_PRELOAD"] == libc
    assert "LD_PRELOAD" not in seen("--no-hook", SPILLWAY_HOOK=str(hook))


def test_a_hook_whose_name_ld_preload_cannot_hold_is_left_out(run, tmp_path):
    hook = tmp_path / "with space.so"
    hook.write_bytes(b"")
    done = run("env", SPILLWAY_HOOK=str(hook))
    assert "LD_PRELOAD=" not in printed(done)
    assert "LD_PRELOAD cannot hold such a name" in done.stderr


def test_no_patch_leaves_pythonpath(seen, environment):
    assert seen("--no-patch")["PYTHONPATH"] == environment["PYTHONPATH"]


def test_optim_args_go_to_the_children(seen):
    assert seen("--optim-args", "state_mem=25%")["SPILLWAY_OPTIM_ARGS"] == "state_mem=25%"
    assert seen("--optim-args=state_mem=1GiB")["SPILLWAY_OPTIM_ARGS"] == "state_mem=1GiB"


# ------------------------------------------------------------------------------ sitecustomize --

PATCHED = ("import sys; print('spillway.trainers' in sys.modules, 'torch' in sys.modules, "
           "getattr(sys, 'users_own', None))")


def site_of(folder, text):
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(text)
    return str(folder)


def with_site(environment, *folders):
    return os.pathsep.join([*folders, environment["PYTHONPATH"]])


def test_the_users_sitecustomize_runs_too(run, environment, tmp_path):
    folder = site_of(tmp_path / "user", "import sys, sitecustomize\n"
                     "sys.users_own = sitecustomize.__file__")
    done = run(sys.executable, "-c", PATCHED, PYTHONPATH=with_site(environment, folder))
    assert printed(done) == f"True False {os.path.join(folder, 'sitecustomize.py')}\n"
    assert done.stderr == ""


def test_a_users_sitecustomize_that_fails_is_reported_and_no_more(run, environment, tmp_path):
    folder = site_of(tmp_path / "user", "raise ValueError('mine')")
    done = run(sys.executable, "-c", PATCHED, PYTHONPATH=with_site(environment, folder))
    assert printed(done) == "True False None\n" and "mine" in done.stderr


def test_two_installations_do_not_chain_in_a_circle(run, environment, tmp_path):
    other = tmp_path / "other" / "spillway"
    shutil.copytree(PACKAGE, other)
    folder = site_of(tmp_path / "user",
                     "import sys\nsys.users_own = 1 + getattr(sys, 'users_own', 0)")
    done = run(sys.executable, "-c", PATCHED,
               PYTHONPATH=with_site(environment, str(other / "_site"), folder))
    assert printed(done) == "True False 1\n" and done.stderr == ""


def test_an_interpreter_without_spillway_gets_it_alone(run):
    bare = getattr(sys, "_base_executable", sys.executable)
    code = ("import sys, spillway; assert 'torch' not in sys.modules; "
            "print([p for p in sys.path if p.endswith('python')])")
    wrapped = [shutil.which("env"), f"PYTHONPATH={SITE}", bare, "-c", code]
    assert printed(run(*wrapped)) == "[]\n"


def test_an_interpreter_where_it_cannot_be_loaded_works_and_says_so(run, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "python" / "spillway")
    wrapped = [shutil.which("env"), f"PYTHONPATH={tmp_path / 'python' / 'spillway' / '_site'}",
               "SPILLWAY_LIB=" + str(tmp_path / "nowhere.so"), sys.executable, "-S", "-c",
               "import site; site.main(); print('lives')"]
    done = run(*wrapped)
    assert printed(done) == "lives\n" and done.stderr.count("not patched:") == 1


# ---------------------------------------------------------------------------------- launchers --


@pytest.fixture
def script(tmp_path):
    pytest.importorskip("transformers", reason="NO transformers: launchers not tested")
    path = tmp_path / "user_script.py"
    path.write_text(SCRIPT)
    return path


def test_python_trains_with_it(run, script, tmp_path):
    done = run("--optim-args", "state_mem=50%", sys.executable, script, tmp_path)
    assert OURS in printed(done)
    assert "spillway: optim=paged_adamw_8bit is spillway.PagedAdamW8bit, state_mem=50%" \
        in done.stderr


def test_without_the_patch_it_is_not_ours(run, script, tmp_path):
    pytest.importorskip("bitsandbytes")
    done = run("--no-patch", sys.executable, script, tmp_path)
    assert "spillway" not in done.stdout


@pytest.mark.parametrize("launcher", [
    ["torchrun", "--standalone", "--nproc-per-node", "2"],
    ["accelerate", "launch", "--cpu", "--num_processes", "1"]], ids=lambda words: words[0])
def test_launchers_carry_it_to_their_children(run, script, tmp_path, environment, launcher):
    if not shutil.which(launcher[0], path=environment["PATH"]):
        pytest.skip(f"NO {launcher[0]}: not tested as a launcher")
    done = run(*launcher, script, tmp_path, OMP_NUM_THREADS="1")
    assert printed(done).count(OURS) == (2 if launcher[0] == "torchrun" else 1)
    assert done.stderr.count("is spillway.PagedAdamW8bit") == 1  # of the first rank
