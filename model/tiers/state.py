"""The frozen form of an engine with tiers.

All numbers in base 128, so that small ones, most of them, take a byte. In this order:

* how many requests wait, stand in the connector queue and run, and each of them in queue order, as in ``model.paged.state`` and
  with what the tiers know of it: cursor, sleep, its last store, its load, its claim, upstream's rounds, the cohort refused last;
* the eviction order of G1;
* running transfers of host memory in order of start, the eviction order of host memory, how long the lanes are taken;
* which transfers still read which physical slots;
* the disk's blocks in order of use, its jobs in order of submission, and what they fill;
* with the faulty rule, the attempts of the present instant.

Times are relative to now, requests and transfers are named by position. Pins follow from the copies that read. Slots are
numbered by the blocks in them in the order above, then the vacant ones from the next to be taken. The clock, counts and ghosts
are left out, and so is on whose behalf a store or a promotion began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain

from model.actions import Nanoseconds
from model.paged.pool import Copy
from model.paged.rules import PagedRules, cdiv
from model.paged.state import CODES, STATUSES
from model.registry import NO_BLOCK, Registry
from model.tiers.core import Load, Offload, Placed, Stage, TieredCore, TieredRequest
from model.tiers.disk import Disk, Job, Stored
from model.tiers.host import EXTERNAL, KINDS, LOAD, Entry, HostTier, Transfer
from model.tiers.rules import TierRules
from model.views import WAITING


class Writer:
    """Appends numbers to a state."""

    def __init__(self) -> None:
        """An empty state."""
        self.state = bytearray()

    def put(self, *numbers: int) -> None:
        """Append numbers ≥ 0."""
        for given in numbers:
            number = given
            while number > 127:
                self.state.append(number & 127 | 128)
                number >>= 7
            self.state.append(number)

    def put_all(self, numbers: Sequence[int]) -> None:
        """Append numbers ≥ 0, their count first."""
        self.put(len(numbers), *numbers)

    def put_exact(self, value: Nanoseconds) -> None:
        """Append a number that may be a fraction."""
        self.put(value.numerator, value.denominator)


class Reader:
    """Reads what a ``Writer`` wrote."""

    def __init__(self, state: bytes) -> None:
        """At the start of ``state``."""
        self._bytes = iter(state)

    def get(self) -> int:
        """The next number."""
        number = shift = 0
        for byte in self._bytes:
            number |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        return number

    def get_all(self) -> list[int]:
        """The next numbers, their count read first."""
        return [self.get() for _ in range(self.get())]

    def get_exact(self) -> Nanoseconds:
        """The next number that may be a fraction."""
        numerator, denominator = self.get(), self.get()
        return numerator if denominator == 1 else Fraction(numerator, denominator)


def queued(core: TieredCore) -> Iterator[TieredRequest]:
    """Every live request, in the order in which it is frozen."""
    waiting: Iterable[TieredRequest] = core.waiting  # type: ignore[assignment]
    return chain(waiting, core.connector.values(), core.running)


def freeze(core: TieredCore) -> bytes:
    """The canonical state of an engine between two actions."""
    out = Writer()
    requests = list(queued(core))
    transfers = {id_: position for position, id_ in enumerate(core.offload.host.transfers)}
    out.put(len(core.waiting), len(core.connector), len(core.running))
    for request in requests:
        _freeze_request(out, core, request, transfers)
    index = core.pool.index
    out.put(len(core.pool.inactive))
    for copy in core.pool.inactive:
        out.put(copy.identity, index[copy.identity].index(copy))
    _freeze_host(out, core.offload.host, core.now)
    places = {copy.slot: number for number, copy in enumerate(_placed(core))}
    places.update((slot, len(places) + depth) for depth, slot in enumerate(reversed(core.pool.vacant)))
    sources = sorted((places[slot], transfers[reader]) for slot, reader in core.sources.items())
    out.put_all([number for pair in sources for number in pair])
    positions = {request.id: position for position, request in enumerate(requests)}
    if core.offload.disk is not None:
        _freeze_disk(out, core.offload, core.offload.disk, core.now, transfers, positions)
    if core.offload.rules.greedy:
        attempted = core.offload.attempted if core.offload.attempted_at == core.now else set()
        known = sorted((positions[owner], block) for owner, block in attempted if owner in positions)
        out.put_all([number for pair in known for number in pair])
    return bytes(out.state)


def _placed(core: TieredCore) -> Iterator[Placed]:
    """Every physical block in use, each once, in the order in which thawing meets it."""
    seen: set[Copy] = set()
    held: Iterator[Iterable[Copy]] = (
        chain(request.blocks, *((request.load.hits, request.load.fresh) if request.load else ()))
        for request in queued(core)
    )
    for copy in chain(chain.from_iterable(held), core.pool.inactive):
        if copy not in seen:
            seen.add(copy)
            assert isinstance(copy, Placed)
            yield copy


def _freeze_request(out: Writer, core: TieredCore, request: TieredRequest, transfers: dict[int, int]) -> None:
    offload, index = core.offload, core.pool.index
    out.put(
        request.number,
        CODES[request.status],
        request.generated,
        request.computed,
        request.allocated,
        request.identified,
    )
    for copy in request.blocks:
        out.put(0 if copy.identity == NO_BLOCK else 1 + index[copy.identity].index(copy))
    out.put(request.cursor, request.asleep)
    # A store that has ended is forgotten at the next lookup.
    store = request.latest_store
    out.put(1 + transfers[store] if store in transfers else 0)
    load = request.load
    if load is None:
        out.put(0)
    else:
        out.put(2 if load.transfer is None else 1, load.g1_blocks, len(load.blocks))
        if load.transfer is not None:
            out.put(transfers[load.transfer], *(index[copy.identity].index(copy) for copy in load.hits))
    out.put_all(sorted(offload.claims.get(request.id, ())))
    if offload.rules.bounded:
        out.put(request.rounds, request.bypasses_disk)
    stands = request.refused is not None and request.refused[1] == offload.host.changes
    out.put(request.refused[0] if request.refused is not None and stands else 0)


def _freeze_host(out: Writer, host: HostTier, now: Nanoseconds) -> None:
    out.put(len(host.transfers))
    for transfer in host.transfers.values():
        out.put(KINDS.index(transfer.kind))
        out.put_all(transfer.blocks)
        if transfer.kind != EXTERNAL:
            assert transfer.due is not None, "stores are submitted by the end of their pass"
            out.put_exact(transfer.due - now)
    out.put_all(tuple(host.order))
    for free in (host.d2h_free, host.h2d_free):
        out.put_exact(max(free - now, 0))


def _freeze_disk(
    out: Writer, offload: Offload, disk: Disk, now: Nanoseconds, transfers: dict[int, int], positions: dict[str, int]
) -> None:
    assert disk.clock == now, "the state of a disk shared with others is not that of one engine"
    assert disk.completions == offload.seen_completions
    assert not disk.undelivered
    out.put(len(disk.stored))
    for (pool, block), stored in disk.stored.items():
        out.put(pool, block, stored.pending)
    out.put(len(disk.jobs))
    for job in disk.jobs.values():
        out.put(job.worker, job.reading)
        out.put_all(job.blocks)
        out.put_exact(max(job.ready - now, 0))
        out.put_exact(job.remaining)
        if job.reading:
            stage = offload.stages[job.id]
            out.put(0 if stage.owner is None else 1 + positions[stage.owner])
            out.put_all([transfers[transfer] for transfer in stage.transfers])


def thaw(rules: PagedRules, tier_rules: TierRules, registry: Registry, state: bytes) -> TieredCore:
    """The engine that froze to ``state``, at time 0."""
    return _Thawing(rules, tier_rules, registry, state).core


class _Thawing:
    """An engine in the making: the blocks met so far, by what they hold."""

    def __init__(self, rules: PagedRules, tier_rules: TierRules, registry: Registry, state: bytes) -> None:
        self.read = Reader(state)
        self.registry = registry
        self.core = TieredCore(rules, registry, Offload(tier_rules))
        self.cached: dict[tuple[int, int], Placed] = {}
        self.slots = 0
        self._requests()
        self._pool()
        self._host()
        sources = iter(self.read.get_all())
        self.core.sources = dict(zip(sources, sources, strict=True))
        if self.core.offload.disk is not None:
            self._disk(self.core.offload.disk)
        if tier_rules.greedy:
            requests = list(queued(self.core))
            pairs = iter(self.read.get_all())
            self.core.offload.attempted = {(requests[at].id, block) for at, block in zip(pairs, pairs, strict=True)}

    def _private(self) -> Placed:
        self.slots += 1
        return Placed(self.slots - 1)

    def _copy(self, identity: int, rank: int) -> Placed:
        copy = self.cached.get((identity, rank))
        if copy is None:
            copy = self.cached[identity, rank] = self._private()
            copy.identity, copy.refs = identity, 0
        return copy

    def _requests(self) -> None:
        core = self.core
        waiting, deferred, running = (self.read.get() for _ in range(3))
        for position in range(waiting + deferred + running):
            request = self._request()
            core.requests[request.id] = request
            if position < waiting:
                core.waiting.append(request)
            elif position < waiting + deferred:
                request.deferred = True
                core.connector[request.id] = request
            else:
                core.running.append(request)

    def _request(self) -> TieredRequest:
        read, core, registry = self.read, self.core, self.registry
        number = read.get()
        request = TieredRequest(registry.specs[number], number, registry.chains[number], core.rules)
        request.status = STATUSES[read.get()]
        request.generated = read.get()
        request.computed = read.get()
        request.allocated = read.get()
        request.identified = read.get()
        if request.status != WAITING:
            request.cached_tokens = 0
        for position in range(cdiv(request.allocated, core.rules.block_size)):
            rank = read.get()
            if not rank:
                request.blocks.append(self._private())
                continue
            copy = self._copy(request.chain[position], rank - 1)
            copy.refs += 1
            request.blocks.append(copy)
        request.cursor = read.get()
        request.asleep = bool(read.get())
        store = read.get()
        request.latest_store = store - 1 if store else None
        request.load = self._load(request)
        claim = read.get_all()
        if claim:
            core.offload.claims[request.id] = dict.fromkeys(claim)
        if core.offload.rules.bounded:
            request.rounds = read.get()
            request.bypasses_disk = bool(read.get())
        refused = read.get()
        request.refused = (refused, 0) if refused else None
        return request

    def _load(self, request: TieredRequest) -> Load | None:
        read = self.read
        code = read.get()
        if not code:
            return None
        g1_blocks, count = read.get(), read.get()
        blocks = request.keys[g1_blocks : g1_blocks + count]
        if code == 2:
            return Load(None, blocks, [], [], g1_blocks)
        transfer = read.get()
        hits: list[Copy] = []
        for key in request.keys[:g1_blocks]:
            hit = self._copy(key, read.get())
            hit.pins += 1
            hits.append(hit)
        fresh = [self._private() for _ in blocks]
        for copy in fresh:
            copy.refs, copy.pins = 0, 1
        self.core.loading.update(dict.fromkeys(blocks, transfer))
        return Load(transfer, blocks, hits, fresh, g1_blocks)

    def _pool(self) -> None:
        pool = self.core.pool
        for _ in range(self.read.get()):
            copy = self._copy(self.read.get(), self.read.get())
            pool.inactive[copy] = None
        pool.copies = self.slots
        pool.vacant = list(range(pool.total - 1, self.slots - 1, -1))
        for identity, rank in sorted(self.cached):
            pool.index.setdefault(identity, []).append(self.cached[identity, rank])

    def _host(self) -> None:
        host, read = self.core.offload.host, self.read
        owners = {
            request.load.transfer: request.id
            for request in self.core.connector.values()
            if request.load is not None and request.load.transfer is not None
        }
        for id_ in range(read.get()):
            kind = KINDS[read.get()]
            transfer = Transfer(id_, kind, owners.get(id_, ""), tuple(read.get_all()))
            if kind != EXTERNAL:
                transfer.due = read.get_exact()
            host.transfers[id_] = transfer
            if kind != LOAD:
                host.entries.update((block, Entry(id_)) for block in transfer.blocks)
        host.next_id = len(host.transfers)
        host.preload(read.get_all())
        for transfer in host.transfers.values():
            if transfer.kind == LOAD:
                self._pin(transfer.blocks)
        host.d2h_free = read.get_exact()
        host.h2d_free = read.get_exact()

    def _pin(self, blocks: Iterable[int]) -> None:
        """Pin blocks that a copy reads; the eviction order did not hold them."""
        for block in blocks:
            self.core.offload.host.entries.setdefault(block, Entry()).pins += 1

    def _disk(self, disk: Disk) -> None:
        read, offload = self.read, self.core.offload
        requests = list(queued(self.core))
        for _ in range(read.get()):
            key = read.get(), read.get()
            disk.put(key, Stored(offload.worker, pending=bool(read.get())))
        for id_ in range(read.get()):
            worker, reading = read.get(), bool(read.get())
            blocks = tuple(read.get_all())
            ready, remaining = read.get_exact(), read.get_exact()
            disk.jobs[id_] = Job(id_, worker, reading, blocks, 0, ready, remaining)
            if reading:
                owner = read.get()
                offload.stages[id_] = Stage(requests[owner - 1].id if owner else None, tuple(read.get_all()))
                for block in blocks:
                    disk.stored[disk.key(worker, block)].pins += 1
            elif worker == offload.worker:
                self._pin(blocks)
        disk.next_id = len(disk.jobs)
