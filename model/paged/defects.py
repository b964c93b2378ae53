"""The defects of the paged scheduler."""

from __future__ import annotations

from model.defects import Defect, declare

declare(
    Defect(
        id="speculative-terminal-block",
        summary=(
            "With speculation on, a pass reserves and takes KV room for the last token of every burst although that token "
            "is never computed in this pass. A request whose final length exceeds the cache by exactly that one token "
            "preempts itself in every pass and never finishes."
        ),
        source="finding 9 (aisimulate #285); vLLM specification 5",
        schedulers=("vllm", "trtllm"),
        caught_by=("no-livelock", "no-needless-preemption", "request-shape"),
        correction="reserve for, and allocate, the tokens of a burst but its last (vLLM specification 5.3)",
        variants={
            "reservation-only": "reserves as is right, but still takes a block for the last token of a burst",
            "allocation-only": "allocates as is right, but still reserves room for the last token of a burst",
        },
        seed=True,
        upstream=True,
    ),
    Defect(
        id="handoff-scan",
        summary=(
            "How much room accepted hand-offs still need is computed for every waiting request that is looked at, and once more "
            "behind every pass, by a look at every request there is, also where there is no hand-off and where the value is not "
            "used. The outcome is right; the cost of a pass grows with the number of requests."
        ),
        source="finding 5 (aisimulate #285); vLLM specification 6",
        schedulers=("vllm", "trtllm"),
        caught_by=("handoff-scan-needed",),
        correction="compute it for TensorRT-LLM's policy alone, when a request could be admitted, and look at hand-offs alone",
        seed=True,
    ),
    Defect(
        id="admits-unservable",
        summary=(
            "A request whose prompt fits but whose whole output cannot is admitted, and so is one whose prompt exceeds the "
            "token budget while chunked prefill is off. It is never refused and never finishes, and those behind it starve."
        ),
        source="specified behaviour, found by exploration (vLLM specification 3.4, 5.2)",
        schedulers=("vllm", "trtllm"),
        caught_by=("unservable-refused", "no-livelock", "no-stall"),
        correction="refuse, at the head of the queue, a request that could not finish even alone",
        upstream=True,
    ),
    Defect(
        id="holders-wait",
        summary=(
            "On a decode worker the head of the queue waits for blocks, and behind it waits a request that holds some, because "
            "its KV came from the prefill worker. Nobody runs who could free any. It takes one running request that preempts "
            "itself for its next block just when another one has been handed over: both then wait for ever."
        ),
        source="specified behaviour, found by exploration (vLLM specification 3.2, against 4.2)",
        schedulers=("vllm", "trtllm"),
        caught_by=("no-stall", "servable-finishes"),
        correction="when the head of the queue has to wait for blocks, admit the first request behind it whose KV is there",
        upstream=True,
    ),
    Defect(
        id="fifo-preempts-last-ready",
        summary=(
            "With fifo preemption and speculation, room for the burst of the one request that could produce a token is made by "
            "preempting that request, while another that is not ready keeps its blocks. The pass emits nothing, the two change "
            "places, and so on for ever."
        ),
        source="specified behaviour, found by fuzzing (vLLM specification 3.7, 3.8)",
        schedulers=("vllm",),
        caught_by=("no-livelock", "bounded-preemption", "servable-finishes"),
        correction="with fifo, pass over the first running request while it is the only one about to produce a token",
        upstream=True,
    ),
    Defect(
        id="counts-dropped-hits",
        summary=(
            "Admission takes for free every cached block of a prefix that somebody holds, also those behind the point at which "
            "the prefix is cut because its last token is to be computed again. When a block before that point is held by nobody, "
            "the request is admitted with one block too few and preempts a running request."
        ),
        source="specified behaviour, found by review (vLLM specification 3.3, against 3.4 and S-ADM)",
        schedulers=("vllm",),
        caught_by=("admission-preempts-nobody",),
        correction="count as held only those blocks of the prefix that are used",
        upstream=True,
    ),
)
