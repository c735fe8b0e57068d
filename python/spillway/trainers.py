"""Spillway's optimizers behind the names that trainers know.

`patch()` wraps transformers.Trainer.get_optimizer_cls_and_kwargs, which is where the Trainer, TRL,
Axolotl, LLaMA-Factory and Unsloth turn `optim` into a class: `optim="paged_adamw_8bit"` then means
spillway.PagedAdamW8bit, and scripts and YAML files stay as they are. What it does not touch: every
other name, the Trainer's parameter groups, an optimizer that was handed to the Trainer.

It imports neither torch nor transformers: `spillway-run` calls it at the start of every Python
process, most of which train nothing. Where transformers is not imported yet, it is patched when its
trainer module is.
"""
import functools
import os
import sys

# The Trainer's name of an optimizer: ours.
CLASSES = {
    "adamw_8bit": "AdamW8bit",
    "adamw_bnb_8bit": "AdamW8bit",
    "paged_adamw": "PagedAdamW",
    "paged_adamw_32bit": "PagedAdamW32bit",
    "paged_adamw_8bit": "PagedAdamW8bit",
    "lion_8bit": "Lion8bit",
    "lion_32bit": "Lion32bit",
    "paged_lion_8bit": "PagedLion8bit",
    "paged_lion_32bit": "PagedLion32bit",
    "ademamix": "AdEMAMix32bit",
    "ademamix_8bit": "AdEMAMix8bit",
    "paged_ademamix_8bit": "PagedAdEMAMix8bit",
    "paged_ademamix_32bit": "PagedAdEMAMix32bit",
}
PAGING = ("auto", "copy", "mapped", "unified", "off")
ORDERS = ("before", "after")

ENVIRONMENT = "SPILLWAY_OPTIM_ARGS"  # what spillway-run --optim-args hands to its children
_MODULE = "transformers.trainer"
_METHOD = "get_optimizer_cls_and_kwargs"
_MARK = "_spillway_original"


# ------------------------------------------------------------------------------- optim_args --


def _number(value):
    return float(value)


def _count(value):
    return int(value)


def _size(value):
    """Bytes as a number; "2GiB" and "25%" are for the optimizer to read."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _share(value):
    return float(value[:-1]) / 100 if isinstance(value, str) and value.endswith("%") \
        else float(value)


def _paging(value):
    if value not in PAGING:
        raise ValueError
    return value


def _order(value):
    if value not in ORDERS:
        raise ValueError
    return value


# What optim_args may say, how it is read, and what the error says is needed.
OPTIONS = {
    "state_mem": (_size, "bytes, 2GiB or 25%"),
    "occupancy": (_share, "0.9 or 90%"),
    "store": (str, "ram or file:PATH"),
    "page_size": (_size, "bytes or 1MiB"),
    "max_norm": (_number, "a number"),
    "paging": (_paging, " or ".join(PAGING)),
    "host_mem": (_size, "bytes or 16GiB"),
    "pinned_mem": (_size, "bytes or 1GiB"),
    "min_8bit_size": (_count, "a whole number"),
    "decay_order": (_order, " or ".join(ORDERS)),
}

# What they may say of AdEMAMix besides, as with transformers' own.
ADEMAMIX_OPTIONS = {
    "beta1": (_number, "a number"),
    "beta2": (_number, "a number"),
    "beta3": (_number, "a number"),
    "alpha": (_number, "a number"),
    "eps": (_number, "a number"),
    "t_alpha": (_count, "a whole number"),
    "t_beta3": (_count, "a whole number"),
}


def _pairs(text):
    for part in text.split(","):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"optim_args: {part.strip()!r} is not of the form key=value")
        yield key.strip(), value.strip()


def parse_options(given, where="optim_args", ademamix=False):
    """The keyword arguments that `optim_args` means: "k=v,k=v" or a dict; of AdEMAMix or another.
    ValueError names what is not known, or what cannot be read."""
    options, known = {}, {**OPTIONS, **ADEMAMIX_OPTIONS} if ademamix else OPTIONS
    for key, value in given.items() if isinstance(given, dict) else _pairs(given or ""):
        if key not in known:
            raise ValueError(f"{where}: {key} is not known to Spillway; known are "
                             f"{', '.join(sorted(known))}")
        read, needed = known[key]
        try:
            options[key] = read(value)
        except (TypeError, ValueError):
            raise ValueError(f"{where}: {key}={value}: {needed} is needed") from None
    return options


# ----------------------------------------------------------------------------------- choice --

_said = set()


def say(text):
    """One line, once a process, on a job's first rank. A warning, for a name does not mean what its
    user wrote, and because trainers set logging up in their own ways: Axolotl drops what others say
    below that. The logger is "spillway"."""
    if text in _said or os.environ.get("RANK", "0") != "0":
        return
    import logging  # here, for every Python process under spillway-run imports this module
    _said.add(text)
    logging.getLogger("spillway").warning("spillway: %s", text)


def _keep_embeddings(model):
    """Rows of an embedding that a batch does not use have a gradient of zero, which 8-bit state
    bears badly: the Trainer gives them 32-bit state with bitsandbytes' optimizers, and so do we."""
    import spillway
    import torch
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            spillway.keep_32bit(module.weight)


def choose(args, model=None):
    """(class, keyword arguments) for TrainingArguments whose `optim` is one of ours, else None."""
    name = str(getattr(args.optim, "value", args.optim))
    if name not in CLASSES:
        return None
    import spillway
    ademamix = "ademamix" in name
    options = parse_options(os.environ.get(ENVIRONMENT), ENVIRONMENT, ademamix)
    options.update(parse_options(args.optim_args, ademamix=ademamix))
    if model is not None and name.endswith("8bit"):
        _keep_embeddings(model)
    said = "".join(f", {key}={value}" for key, value in options.items())
    say(f"optim={name} is spillway.{CLASSES[name]}{said}")
    betas = options.pop("beta1", args.adam_beta1), options.pop("beta2", args.adam_beta2)
    if ademamix:
        betas += (options.pop("beta3", 0.9999),)
    if "lion" not in name:
        options.setdefault("eps", args.adam_epsilon)
    options.update(lr=args.learning_rate, betas=betas)
    return getattr(spillway, CLASSES[name]), options


# ------------------------------------------------------------------------------------ patch --


def _wrap(module):
    """Wraps the method of a transformers.trainer module, once."""
    trainer = getattr(module, "Trainer", None)
    method = getattr(trainer, _METHOD, None)
    if method is None:
        say(f"this transformers has no Trainer.{_METHOD}: its optimizers stay its own")
        return
    if hasattr(method, _MARK):
        return

    @functools.wraps(method)
    def get_optimizer_cls_and_kwargs(args, model=None, *rest, **named):
        # Asked again here: another library may have wrapped us, and then unpatch cannot undo it.
        ours = choose(args, model) if _finder in sys.meta_path else None
        return ours or method(args, model, *rest, **named)

    setattr(get_optimizer_cls_and_kwargs, _MARK, method)
    setattr(trainer, _METHOD, staticmethod(get_optimizer_cls_and_kwargs))


class _Finder:
    """Sees to it that transformers.trainer is wrapped as soon as it has been executed. In
    sys.meta_path: the patch is on."""

    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                break
        else:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            if module.__name__ == _MODULE and self in sys.meta_path:
                _wrap(module)

        # On this one loader and not through a loader of ours, which would take away what others ask
        # a loader for: get_source, get_data, resource readers.
        spec.loader.exec_module = exec_module
        return spec


_finder = _Finder()


def patch():
    """Makes the Trainer's names of paged and 8-bit optimizers mean Spillway's classes, in this
    process, now or when transformers is imported. May be called again."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    module = sys.modules.get(_MODULE)
    if module is not None:
        _wrap(module)


def unpatch():
    """Gives the names back to transformers; optimizers that were made stay what they are."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    trainer = getattr(sys.modules.get(_MODULE), "Trainer", None)
    method = getattr(trainer, _METHOD, None)
    if hasattr(method, _MARK):
        setattr(trainer, _METHOD, staticmethod(getattr(method, _MARK)))
