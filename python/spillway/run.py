"""spillway-run: runs a command so that every Python process in it trains with Spillway.

It only prepares the environment and becomes the command: PYTHONPATH leads with a sitecustomize that
calls spillway.trainers.patch, and LD_PRELOAD with the hook that lets state give way to the
allocations of PyTorch. What the command starts inherits both, so launchers work.
"""
import os
import sys

from . import trainers

USAGE = "usage: spillway-run [--no-hook] [--no-patch] [--optim-args K=V,...] CMD [ARG...]"
HELP = USAGE + """

Runs CMD so that the optimizer names paged_adamw_8bit, paged_lion_8bit, paged_ademamix_8bit (and
32bit, and adamw_8bit) of the Hugging Face Trainer (and of TRL, Axolotl, LLaMA-Factory, Unsloth) mean
Spillway's, in every Python process that CMD starts: python, torchrun, accelerate launch,
llamafactory-cli, axolotl.

  --optim-args K=V,...  options of the optimizer where the trainer's own optim_args do not say them:
                        state_mem=25%, occupancy=0.9, store=file:/scratch/state, max_norm=1, ...
  --no-hook             without libspillway_hook.so in LD_PRELOAD
  --no-patch            the names stay what they are; only the hook
  --help, --version"""
_SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_site")


class _Refused(Exception):
    """A line for the user, and the exit status."""

    def __init__(self, line, status=2):
        super().__init__(line)
        self.status = status


def _version():
    from . import _lib
    return _lib.version()


def parse(arguments):
    """(options, command): the options before the command; what follows is the command's own."""
    options = {"hook": True, "patch": True, "optim_args": None}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        name, equals, value = option.partition("=")
        if option in ("--no-hook", "--no-patch"):
            options[option[5:]] = False
        elif name == "--optim-args":
            if not equals and not rest:
                raise _Refused("--optim-args: K=V,... is missing")
            options["optim_args"] = value if equals else rest.pop(0)
        else:
            raise _Refused(f"{option} is not an option; {USAGE}")
    return options, rest


def _prepend(environment, name, path):
    there = environment.get(name)
    parts = there.split(os.pathsep) if there else []
    if path not in parts:
        environment[name] = os.pathsep.join([path, *parts])


def _add_hook(environment):
    from . import _lib
    path = _lib.hook_path()
    if not path:
        return
    path = os.path.abspath(path)
    if any(letter in path for letter in " :;$"):
        # The loader splits LD_PRELOAD there, and complains in every process.
        sys.stderr.write(f"spillway-run: {path}: LD_PRELOAD cannot hold such a name, so the hook "
                         "is not preloaded\n")
        return
    _prepend(environment, "LD_PRELOAD", path)


def environment_for(options, environment):
    """The environment of the command."""
    environment = dict(environment)
    if options["optim_args"] is not None:
        try:
            trainers.parse_options(options["optim_args"], "--optim-args", ademamix=True)
        except ValueError as error:
            raise _Refused(str(error)) from None
        environment[trainers.ENVIRONMENT] = options["optim_args"]
    if options["patch"]:
        _prepend(environment, "PYTHONPATH", _SITE)
    if options["hook"]:
        _add_hook(environment)
    return environment


def _become(command, environment):
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        raise _Refused(f"{command[0]}: command not found", 127) from None
    except OSError as error:
        raise _Refused(f"{command[0]}: {error.strerror}", 126) from None


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments and arguments[0] in ("--help", "-h"):
            print(HELP)
            return 0
        if arguments and arguments[0] == "--version":
            print(f"spillway-run {_version()}")
            return 0
        options, command = parse(arguments)
        if not command:
            raise _Refused(f"no command; {USAGE}")
        _become(command, environment_for(options, os.environ))
    except _Refused as refused:
        sys.stderr.write(f"spillway-run: {refused}\n")
        return refused.status
    except ImportError as error:
        sys.stderr.write(f"spillway-run: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
