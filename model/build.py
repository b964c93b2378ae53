"""From a configuration to an engine of the model."""

from __future__ import annotations

from model.config import DISAGGREGATED, PAGED, EngineConfig
from model.engine import Engine
from model.errors import BadInput, shown
from model.handoff.engine import DisaggregatedEngine
from model.paged.engine import PagedEngine
from model.radix.engine import RadixEngine
from model.registry import Registry
from model.tiers.engine import TieredEngine


def build_engine(config: EngineConfig) -> Engine:
    """A fresh engine of the model for ``config``.

    Raises:
        BadInput: for an implementation other than ``model``, or what the model of a scheduler does not have.
    """
    if config.implementation != "model":
        raise BadInput("implementation", shown(config.implementation), '"model"')
    if config.role == DISAGGREGATED:
        registry = Registry(config.block_size)
        prefill, decode = (_worker(config.worker(role), registry) for role in ("prefill", "decode"))
        return DisaggregatedEngine(config, (prefill, decode))
    return _worker(config)


def _worker(config: EngineConfig, registry: Registry | None = None) -> Engine:
    if config.tiers is not None:
        return TieredEngine(config)
    if config.scheduler in PAGED:
        return PagedEngine(config, registry)
    return RadixEngine(config, registry)
