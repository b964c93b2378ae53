"""The configuration of the tiers in the form the model reads: sizes in blocks and bytes, times in exact nanoseconds.

1 GB/s is one byte per nanosecond, so a bandwidth is a rate in bytes per nanosecond as it stands, taken at its decimal value;
what a division leaves is a ``Fraction``. No float takes part in any time.
"""

from __future__ import annotations

from fractions import Fraction

from attrs import field, frozen

from model.actions import Nanoseconds
from model.config import EngineConfig, Tiers, nanoseconds

MEGABYTE = 1_000_000
GREEDY = frozenset({"restore-thrash", "restore-thrash:bounded-rounds", "restore-thrash:whole-prefix-only"})
"""The variants of the defect that promote block by block."""

UPSTREAM_ROUNDS_MAX = 1024
"""Restore rounds after which upstream gives up on the disk (offload specification 6.4)."""


def exact(value: Nanoseconds) -> Nanoseconds:
    """``value`` as an ``int`` where it is whole, so that arithmetic stays cheap."""
    return value.numerator if value.denominator == 1 else value


def rate(gbps: float) -> Fraction | None:
    """A bandwidth in bytes per nanosecond, None for unlimited."""
    return Fraction(str(gbps)) or None


@frozen
class DiskRules:
    """The fields of ``Tiers`` that speak of the disk, in model units; a rate of None is unlimited."""

    capacity: int
    shared: bool
    block_bytes: int
    latency_ns: int
    read_rate: Fraction | None
    write_rate: Fraction | None
    shared_read_rate: Fraction | None
    shared_write_rate: Fraction | None


@frozen
class TierRules:
    """See the module docstring.

    Attributes:
        host_blocks: capacity of G2.
        block_bytes: size of a block.
        d2h_ns, h2d_ns: time of one block on a lane.
        host_latency_ns: time to the first byte on a lane; it does not occupy the lane.
        host_events: tell KV events of the host tier.
        disk: the disk, None for none.
        greedy: promotions are staged key by key, as the specification found them (5.6); else as ``restore`` says.
        bounded: with ``greedy``: give up after ``UPSTREAM_ROUNDS_MAX`` rounds.
        structural: with ``greedy``: promote nothing while the whole recoverable prefix exceeds G2.
        unclaimed: without ``greedy``: promotions do not spare what was promoted for others.
        loads_wait_their_turn: without a disk, a request whose load has ended is not put first (defect).
    """

    host_blocks: int
    block_bytes: int
    d2h_ns: Nanoseconds
    h2d_ns: Nanoseconds
    host_latency_ns: int
    host_events: bool
    disk: DiskRules | None
    greedy: bool = field(default=False)
    bounded: bool = field(default=False)
    structural: bool = field(default=False)
    unclaimed: bool = field(default=False)
    loads_wait_their_turn: bool = field(default=False)

    @classmethod
    def of(cls, config: EngineConfig) -> TierRules:
        """The rules of an engine that has tiers."""
        tiers = config.tiers
        assert tiers is not None
        per_token = config.kv_bytes_per_token
        block_bytes = MEGABYTE if per_token is None else per_token * config.block_size
        on = config.defects
        return cls(
            host_blocks=tiers.host_blocks,
            block_bytes=block_bytes,
            d2h_ns=_block_ns(block_bytes, tiers.d2h_gbps),
            h2d_ns=_block_ns(block_bytes, tiers.h2d_gbps),
            host_latency_ns=nanoseconds(tiers.host_latency_ms),
            host_events=config.kv_events and tiers.host_events,
            disk=_disk(tiers, block_bytes),
            greedy=bool(on & GREEDY),
            bounded="restore-thrash:bounded-rounds" in on,
            structural="restore-thrash:whole-prefix-only" in on,
            unclaimed="restore-thrash:unclaimed" in on,
            loads_wait_their_turn="loaded-behind-blocked" in on,
        )


def _block_ns(block_bytes: int, gbps: float) -> Nanoseconds:
    moved = rate(gbps)
    return 0 if moved is None else exact(block_bytes / moved)


def _disk(tiers: Tiers, block_bytes: int) -> DiskRules | None:
    if tiers.disk_blocks is None:
        return None
    return DiskRules(
        capacity=tiers.disk_blocks,
        shared=tiers.disk_scope == "cluster_shared",
        block_bytes=block_bytes,
        latency_ns=nanoseconds(tiers.disk_latency_ms),
        read_rate=rate(tiers.disk_read_gbps),
        write_rate=rate(tiers.disk_write_gbps),
        shared_read_rate=rate(tiers.disk_shared_read_gbps),
        shared_write_rate=rate(tiers.disk_shared_write_gbps),
    )
