"""The defects of the host and disk tiers."""

from __future__ import annotations

from model.defects import Defect, declare

declare(
    Defect(
        id="restore-thrash",
        summary=(
            "A waiting request whose prefix is on disk promotes it block by block, and each promotion may evict another block of "
            "the same prefix. When the prefix is larger than host memory its blocks evict each other for ever: the request is "
            "never admitted, and no GPU block and no token is ever used. Two requests whose prefixes fit do it to each other."
        ),
        source="finding 10 (aisimulate #285); offload specification 5.6, 6",
        schedulers=("vllm",),
        caught_by=("no-livelock", "bounded-restores"),
        correction=(
            "promote the head of the recoverable prefix that host memory can hold, whole or not at all, and keep it from other "
            "promotions until it is used"
        ),
        variants={
            "bounded-rounds": (
                "as upstream mended it: a request gives up on the disk after 1,024 rounds of promotion without any work on its "
                "worker in between"
            ),
            "whole-prefix-only": (
                "as the report proposes: nothing is promoted while the whole recoverable prefix exceeds host memory"
            ),
            "unclaimed": (
                "the head that host memory can hold is promoted whole, and spares the own prefix, but nothing keeps it from the "
                "promotions of others until it is used"
            ),
        },
        seed=True,
        upstream="bounded-rounds",
    ),
    Defect(
        id="loaded-behind-blocked",
        summary=(
            "Without a disk, a request whose load from host memory has ended waits for its turn behind others that stepped aside "
            "before it. One of these may need GPU blocks that the ended load holds: then neither is ever admitted, and everybody "
            "behind them starves."
        ),
        source="specified behaviour, found by review, shown by the released engine 1.6.1 (offload specification 5.2)",
        schedulers=("vllm",),
        caught_by=("no-stall", "servable-finishes"),
        correction="look first, with a disk or without, at requests whose load holds GPU blocks",
        upstream=True,
    ),
)
