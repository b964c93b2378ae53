"""The registry: numbers of requests, and block identities that are equal exactly for equal prefixes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from model.registry import NO_BLOCK, Registry
from model.requests import Prompt, RequestSpec

LISTS = st.lists(st.integers(0, 1), min_size=1, max_size=7)


@st.composite
def specs(draw: st.DrawFn) -> list[RequestSpec]:
    """Requests over two tokens, with a plan or without, some of them under one id."""
    return [
        RequestSpec(draw(st.sampled_from("abc")), Prompt.of_tokens(draw(LISTS)), 8, draw(st.none() | LISTS.map(tuple)))
        for _ in range(draw(st.integers(1, 5)))
    ]


def sequence(spec: RequestSpec) -> list[int]:
    """All tokens a request can come to have."""
    return [*spec.prompt.tokens(), *(spec.output_token(at) for at in range(spec.output))]


@settings(deadline=None, derandomize=True, max_examples=300)
@given(requests=specs(), size=st.integers(1, 4))
def test_two_blocks_have_one_identity_exactly_when_they_end_equal_prefixes(requests: list[RequestSpec], size: int) -> None:
    registry = Registry(size)
    prefixes: dict[int, list[int]] = {}
    for spec in requests:
        number = registry.number(spec)
        tokens = sequence(spec)
        # Asked for in two steps: identities of generated blocks are found one by one as they fill.
        for blocks in (len(tokens) // size // 2, len(tokens) // size):
            chain = registry.chain(number, blocks)
            assert len(chain) >= blocks
        for index in range(len(tokens) // size):
            identity = chain[index]
            assert identity > NO_BLOCK
            prefix = tokens[: (index + 1) * size]
            assert prefixes.setdefault(identity, prefix) == prefix
    known = list(prefixes.values())
    assert all(left != right for at, left in enumerate(known) for right in known[:at])


def test_a_request_is_numbered_once_and_another_under_its_id_gets_its_own_number() -> None:
    registry = Registry(4)
    first = RequestSpec("r", Prompt.of_tokens([1, 2]), 3)
    others = [
        RequestSpec("r", Prompt.of_tokens([1, 3]), 3),
        RequestSpec("r", Prompt.of_tokens([1, 2]), 4),
        RequestSpec("r", Prompt.of_tokens([1, 2]), 3, (1, 2, 3)),
        RequestSpec("s", Prompt.of_tokens([1, 2]), 3),
    ]
    assert registry.number(first) == 0
    assert [registry.number(other) for other in others] == [1, 2, 3, 4]
    again = RequestSpec("r", Prompt.of_tokens([1]).extended([2]), 3)
    assert [registry.number(spec) for spec in (again, *others)] == [0, 1, 2, 3, 4]
    assert registry.specs == [first, *others]


def test_prompt_blocks_are_known_at_once_and_a_partial_one_is_not() -> None:
    registry = Registry(4)
    number = registry.number(RequestSpec("r", Prompt.of_tokens(range(11)), 3))
    assert registry.chains[number] == [1, 2]
    assert registry.chain(number, 3) == [1, 2, 3]
    assert registry.chains[number] == [1, 2, 3]


def test_equal_content_behind_different_blocks_has_different_identities() -> None:
    registry = Registry(2)
    content = ((5, 2),)
    first = registry.identity(NO_BLOCK, content)
    second = registry.identity(first, content)
    assert len({NO_BLOCK, first, second}) == 3
    assert registry.identity(NO_BLOCK, content) == first


def test_identities_are_numbered_in_order_of_appearance() -> None:
    def numbers() -> list[list[int]]:
        registry = Registry(2)
        for id_ in ("a", "b"):
            registry.number(RequestSpec(id_, Prompt.of_streams([("A", 2), (id_, 4)]), 1))
        return registry.chains

    assert numbers() == numbers() == [[1, 2, 3], [1, 4, 5]]
