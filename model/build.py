"""From a configuration to an engine of the model."""

from __future__ import annotations

from model.config import PAGED, EngineConfig
from model.engine import Engine
from model.errors import BadInput, shown
from model.paged.engine import PagedEngine
from model.radix.engine import RadixEngine
from model.tiers.engine import TieredEngine


def build_engine(config: EngineConfig) -> Engine:
    """A fresh engine of the model for ``config``.

    Raises:
        BadInput: for an implementation other than ``model``, or a scheduler the model does not have.
    """
    if config.implementation != "model":
        raise BadInput("implementation", shown(config.implementation), '"model"')
    if config.scheduler in PAGED:
        return PagedEngine(config) if config.tiers is None else TieredEngine(config)
    if config.scheduler == "sglang":
        return RadixEngine(config)
    raise BadInput("scheduler", shown(config.scheduler), '"vllm" or "sglang"')
