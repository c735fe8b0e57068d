"""Spillway in Axolotl: two words of YAML.

    plugins:
      - spillway.axolotl.Plugin
    optimizer: paged_adamw_8bit
    optim_args: {state_mem: 25%}      # if wanted

Why `register` patches and `post_trainer_create` does not set trainer.optimizer_cls_and_kwargs: with
that set, Axolotl makes parameter groups of its own in place of the Trainer's, so that embeddings
lose their weight decay. BasePlugin.create_optimizer exists too, but Axolotl never calls it.
"""
from . import trainers

try:
    from axolotl.integrations.base import BasePlugin
except ImportError:  # Axolotl's plugin manager is not here either: only what it would call is
    BasePlugin = object


class Plugin(BasePlugin):
    """Axolotl calls `register` when it has read the configuration, in every process of a job."""

    def register(self, cfg):
        trainers.patch()

    def post_trainer_create(self, cfg, trainer):
        """Says it where the names that this run chose cannot come to us."""
        if cfg.get("optimizer") in trainers.CLASSES and \
                getattr(trainer, "optimizer_cls_and_kwargs", None) is not None:
            trainers.say(f"optimizer={cfg.get('optimizer')}: this trainer was given an optimizer "
                          "class of its own, which stays")
