"""Who is admitted for prefill, and with how many of its tokens (SGLang specification 3).

Admission is strictly in order: the first request that cannot be admitted ends it. What it charges is whole pages of input,
and for the chunk that completes a prompt the output still to come. Three things limit it::

    room           free and evictable tokens, less what the running requests are still expected to produce
    input budget   whole pages of input in a pass
    chunk budget   likewise; what is left of it cuts a prompt into chunks

The room must be more than what is charged. It is not reduced by the cached prefix that an admission locks; the pages themselves
are counted at the end, and admission ends too when they are not there.
"""

from __future__ import annotations

from model.events import Admission, Signal, Work
from model.radix.core import PREEMPTED, Core, Pass, Request
from model.radix.lease import begin, cached_prefix, extend
from model.radix.rules import RadixRules


def refuse_waiting(core: Core, step: Pass) -> None:
    """Refuse the requests that arrived and can never finish; told before all else."""
    for request in core.refused:
        core.waiting.remove(request)
        del core.requests[request.id]
        core.handoffs.sources.pop(request.id, None)
        step.report.signals.append(Signal(request.id, token=False, completed=True, rejected=True))
    core.refused = []


def is_refused(rules: RadixRules, request: Request) -> bool:
    """Whether a request that arrives is to be refused by the next pass."""
    if request.prompt >= rules.max_length:
        return True
    return not rules.admits_unservable and not can_serve(rules, request.prompt, request.limit)


def can_serve(rules: RadixRules, prompt: int, limit: int) -> bool:
    """Whether a request could be admitted and finish in an empty engine with nothing cached.

    Args:
        rules: of the engine.
        prompt: prompt length in tokens.
        limit: tokens it may produce.
    """
    capacity = rules.num_pages * rules.page_size
    # Every produced token takes a slot but a first one that is also the last.
    slots = prompt + limit if limit > 1 else prompt
    admitted = rules.paged(prompt) + min(limit, rules.clip) < capacity
    return admitted and slots <= capacity and min(rules.chunk_budget, rules.input_budget) >= rules.page_size


def can_decode(rules: RadixRules, prompt: int, limit: int) -> bool:
    """Whether a request that comes with its KV could finish alone.

    Every token takes a slot here. If the request is retracted it has to be prefilled again, for which its pages are enough when
    nobody else runs (``returns_alone``).
    """
    capacity = rules.num_pages * rules.page_size
    return prompt + limit <= capacity and min(rules.chunk_budget, rules.input_budget) >= rules.page_size


def admit_prefills(core: Core, step: Pass) -> None:
    """Admit from the head of the queue as far as slots, budgets and room go."""
    rules = core.rules
    expected = 0.0
    for request in core.running:
        expected += min(request.remaining, rules.clip) * core.ratio
    room = core.obtainable * rules.page_size - expected
    input_left = rules.input_budget
    chunk_left = rules.chunk_budget
    slots = max(rules.max_seqs - len(core.running), 0)
    while core.waiting and len(step.admitted) < slots and chunk_left > 0:
        request = core.waiting[0]
        prefix = request.computed or cached_prefix(core, request)
        to_compute = request.length - prefix
        chunk = choose_chunk(rules, to_compute, chunk_left if rules.input_budget_blocks else min(chunk_left, input_left))
        if chunk is None:
            return
        charged = rules.paged(chunk)
        reserve = 0 if chunk < to_compute else min(request.remaining, rules.clip)
        if charged > input_left or charged > chunk_left:
            return
        if charged + reserve >= room and not returns_alone(core, step, request):
            return
        if not start_chunk(core, step, request, prefix, prefix + chunk):
            return
        room -= charged + reserve
        input_left -= charged
        chunk_left -= charged


def choose_chunk(rules: RadixRules, to_compute: int, chunk_left: int) -> int | None:
    """How many tokens of a request this pass computes; None when it must wait for a later one.

    The rest is taken whole when its pages fit what is left of the chunk budget, else cut to whole pages of that. Finding 1 is
    to compare with the configured budget: a request that fits that, but not what is left of it, is then neither taken nor cut.
    """
    whole = to_compute <= rules.chunk_budget if rules.chunk_ignores_rest else rules.paged(to_compute) <= chunk_left
    if whole:
        return to_compute
    return min(rules.whole_pages(chunk_left), to_compute) or None


def returns_alone(core: Core, step: Pass, request: Request) -> bool:
    """Whether a retracted request comes back to an engine in which nobody else runs; then only its pages count.

    What the room must hold is its whole pages and the tokens still to come. With every token it had produced before its
    retraction, the former may grow by a page and the latter shrinks by one, so that a request that once fitted does not any more.
    """
    return not core.rules.readmits_by_pages and request.status == PREEMPTED and not core.running and not step.admitted


def start_chunk(core: Core, step: Pass, request: Request, prefix: int, end: int) -> bool:
    """Take pages for the tokens of the head of the queue up to ``end`` and enter it in the pass; whether there was room."""
    report = step.report
    first_chunk = not request.computed
    if first_chunk:
        if not begin(core, report, request, prefix, end):
            return False
        report.admissions.append(Admission(request.id, prefix, first=request.cached_tokens is None))
        if request.cached_tokens is None:
            request.cached_tokens = prefix
    elif not extend(core, report, request, end):
        return False
    core.waiting.popleft()
    step.admitted.append(request)
    step.end_sum += end
    step.prefix_sum += prefix
    report.work[request.id] = Work(
        id=request.id,
        total=end - prefix,
        prompt_tokens=min(end, request.prompt) - min(prefix, request.prompt),
        prefix_tokens=min(prefix, request.prompt),
        terminal=not request.remaining,
        prompt=request.prompt,
        length=request.length,
        generated=request.generated,
    )
    return True
