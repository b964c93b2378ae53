"""The defects of the radix scheduler and its tree.

Those found by exploration lie inside the satisfiable envelope of SGLang specification 12, but for
``radix-admits-unservable``. The ones that a replay can show were seen in a released simulator (ai-dynamo-runtime 1.6.1) as
well, which then ends with an error or hangs.
"""

from __future__ import annotations

from model.defects import Defect, declare

EXPLORED = "specified behaviour, found by exploration"
SHOWN = f"{EXPLORED}, and seen in ai-dynamo-runtime 1.6.1"

declare(
    Defect(
        id="sglang-chunk-budget",
        summary=(
            "Whether a prompt is taken whole is decided by the configured chunk budget, not by what is left of it in this pass. "
            "A prompt that fits the former but not the latter is neither taken nor cut: the rest of the budget goes unused, and "
            "where the budget is not a multiple of the page size, some prompts are never admitted and all behind them starve."
        ),
        source="finding 1 (aisimulate #285); SGLang specification 3 step 3, 5.1",
        schedulers=("sglang",),
        caught_by=("work-conservation", "no-stall"),
        correction="take the rest of a prompt whole if its pages fit what is left of the budget, else cut it to pages of that",
        seed=True,
    ),
    Defect(
        id="stored-without-caching",
        summary=(
            "With prefix caching off, Stored events still announce the pages of prompts, although no lookup ever finds them, and "
            "Removed events follow when the requests end."
        ),
        source="finding 4 (aisimulate #285); SGLang specification 5.2",
        schedulers=("sglang",),
        caught_by=("stored-needs-caching",),
        correction="publish nothing at all with prefix caching off",
        seed=True,
    ),
    Defect(
        id="split-keeps-capacity",
        summary=(
            "When an edge of the radix tree is split, the prefix keeps the vectors of the whole edge. A series of requests that "
            "share ever longer parts of one prompt retains memory quadratic in its length."
        ),
        source="finding 8 (aisimulate #285); SGLang specification 5.3",
        schedulers=("sglang",),
        caught_by=("radix-capacity-tight",),
        correction="give the prefix of a split vectors of its own length",
        seed=True,
    ),
    Defect(
        id="radix-admits-unservable",
        summary=(
            "A request that the geometry can never serve (its pages and output exceed the pool, or no page of it fits a budget) "
            "is not refused. It waits at the head of the queue for ever, and those behind it starve; or it runs, and stands "
            "still once the pool is full."
        ),
        source=f"{SHOWN}; SGLang specification 3, 12",
        schedulers=("sglang",),
        caught_by=("unservable-refused", "no-stall", "no-starvation"),
        correction="refuse, in the pass after it arrives, a request that could not be served alone with nothing cached",
        upstream=True,
    ),
    Defect(
        id="input-budget-blocks",
        summary=(
            "A chunk is cut to the chunk budget alone. Where the input budget is smaller, what is left of a prompt may exceed it "
            "after the cut, and the prompt is refused in every pass although pages of it would fit; all behind it starve."
        ),
        source=f"{SHOWN}; SGLang specification 3 steps 3 and 6, against L2 and 12",
        schedulers=("sglang",),
        caught_by=("work-conservation", "no-stall", "servable-finishes"),
        correction="cut a chunk to what is left of both budgets",
        upstream=True,
    ),
    Defect(
        id="retracted-never-readmitted",
        summary=(
            "Admission wants room for the whole pages of a request and for every token still to come. With the tokens that a "
            "request produced before it was retracted the former may have grown by a page, so that it is refused in an empty "
            "engine in which it was once admitted; it never finishes, and all behind it starve."
        ),
        source=f"{SHOWN}; SGLang specification 3 step 5, against 12",
        schedulers=("sglang",),
        caught_by=("no-stall", "servable-finishes"),
        correction="a retracted request that comes back while nobody runs is admitted if its pages are there",
        upstream=True,
    ),
    Defect(
        id="partial-starves-decode",
        summary=(
            "A partly prefilled request keeps its pages while it waits. The last running request is never retracted; once the "
            "two hold the pool between them, it cannot grow and the other cannot go on, and every pass is without effect."
        ),
        source=f"{SHOWN} (which hangs); SGLang specification 2.5, 3 step 4",
        schedulers=("sglang",),
        caught_by=("no-stall", "servable-finishes"),
        correction="when the running one cannot grow otherwise, take the pages of the partly prefilled; they keep their places",
        upstream=True,
    ),
    Defect(
        id="lpm-sorts-partials",
        summary=(
            "The longest-prefix-match policy sorts partly prefilled requests like any other. One can lose the head of the queue "
            "to a request that has more cached, which is then partly prefilled too; both keep their pages, neither finds room "
            "for the rest, and nothing runs that would give any back."
        ),
        source=f"{SHOWN}; SGLang specification 4, against S9",
        schedulers=("sglang",),
        caught_by=("one-partial", "no-stall", "servable-finishes"),
        correction="a partly prefilled request stays at the head of the queue, as in SGLang itself (SGLang specification 11)",
        upstream=True,
    ),
    Defect(
        id="stored-before-cached",
        summary=(
            "The pages of a prompt are announced when they are allocated, but enter the tree with the first token. When room for "
            "first tokens is short, the pass ends without them, and Stored promises pages that no lookup finds until a later "
            "decode step."
        ),
        source=f"{EXPLORED}; SGLang specification 1.3, 2.4, against S13",
        schedulers=("sglang",),
        caught_by=("stored-needs-caching", "events-mirror-cache"),
        correction="put the pages of a finished prompt into the tree also when its first token finds no room",
        upstream=True,
    ),
    Defect(
        id="held-prompt-not-cached",
        summary=(
            "The pages of a prompt are announced when they are allocated, but those of a source that completes with its first "
            "token enter the tree only when the source is released. Until then Stored promises pages that no lookup finds, and "
            "requests with the same prompt compute it again."
        ),
        source=f"{EXPLORED}; SGLang specification 1.3, 2.4, 7, against S13",
        schedulers=("sglang",),
        caught_by=("stored-needs-caching", "events-mirror-cache"),
        correction="put the pages of a completed source into the tree when it is held",
        upstream=True,
    ),
    Defect(
        id="ready-starves-running",
        summary=(
            "On a decode worker all slots are taken, and a request whose KV has come from the prefill worker waits for one, with "
            "its pages. The last running request is never retracted; when it needs a page and there is none, it cannot go on, "
            "and the other cannot begin."
        ),
        source=f"{EXPLORED}; SGLang specification 2.5, 7",
        schedulers=("sglang",),
        caught_by=("no-stall", "servable-finishes"),
        correction="retract the last running request too, when it cannot grow while one that has its KV waits for a slot",
        upstream=True,
    ),
    Defect(
        id="truncation-keeps-capacity",
        summary=(
            "An edge of which the last pages are evicted keeps its vectors. Long prompts that are evicted down to a page and "
            "touched again retain memory in proportion to their number times the size of the pool."
        ),
        source=f"{EXPLORED}; SGLang specification 5.3, against R1",
        schedulers=("sglang",),
        caught_by=("radix-capacity-tight",),
        correction="give back unused capacity once an edge is less than half full",
        upstream=True,
    ),
)
