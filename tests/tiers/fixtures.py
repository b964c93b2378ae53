"""Tiers of 1 MB blocks, of which 1 GB/s moves one a millisecond, and times in milliseconds."""

from __future__ import annotations

from typing import Any

from model.actions import Nanoseconds
from model.config import EngineConfig
from model.tiers.disk import Disk
from model.tiers.host import HostTier, Reservation
from model.tiers.rules import TierRules

MS = 1_000_000


def ms(time: Nanoseconds | None) -> float | None:
    """Nanoseconds as milliseconds."""
    return None if time is None else float(time / MS)


def configuration(
    host_blocks: int = 2,
    *,
    defects: tuple[str, ...] = (),
    engine: dict[str, Any] | None = None,
    kv_bytes_per_token: int | None = None,
    **tiers: Any,
) -> EngineConfig:
    """An engine of blocks of 4 tokens whose tiers are as given."""
    return EngineConfig.from_json(
        {
            "scheduler": "vllm",
            "block_size": 4,
            "num_blocks": 16,
            "kv_bytes_per_token": kv_bytes_per_token,
            "tiers": {"host_blocks": host_blocks, **tiers},
            "defects": list(defects),
            **(engine or {}),
        }
    )


def rules(host_blocks: int = 2, **tiers: Any) -> TierRules:
    """The rules of such an engine."""
    return TierRules.of(configuration(host_blocks, **tiers))


def host(host_blocks: int = 2, d2h: float = 1, h2d: float = 1, **tiers: Any) -> HostTier:
    """Empty host memory with lanes of 1 GB/s."""
    return HostTier(rules(host_blocks, d2h_gbps=d2h, h2d_gbps=h2d, **tiers))


def disk(blocks: int = 64, latency: float = 0, read: float = 1, write: float = 1, **tiers: Any) -> Disk:
    """An empty disk with bandwidths of 1 GB/s for a worker, and none for all unless given."""
    tiers = {"disk_shared_read_gbps": 0, "disk_shared_write_gbps": 0, **tiers}
    made = rules(
        1, disk_blocks=blocks, disk_latency_ms=latency, disk_read_gbps=read, disk_write_gbps=write, **tiers
    ).disk
    assert made is not None
    return Disk(made)


def stored(tier: HostTier, *cohorts: list[int], at: int = 0) -> None:
    """Have cohorts of blocks stored, one after the other, before ``at`` milliseconds and at once."""
    for cohort in cohorts:
        assert isinstance(tier.reserve("store", "seed", cohort), Reservation)
        for id_ in tier.prepared:
            tier.transfers[id_].due = at * MS
        tier.prepared.clear()
        tier.tick(at * MS)
