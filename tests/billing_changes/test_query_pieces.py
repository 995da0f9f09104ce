"""Resource groups cut into rectangles: none is left out, and none is counted twice."""

from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.query_pieces import rectangles

SIZE = 5
PAIRS = st.sets(st.tuples(st.sampled_from("abcABC"), st.sampled_from("1234567890xyz")))


@given(PAIRS)
def test_each_pair_is_in_exactly_one_rectangle(pairs):
    found = list(rectangles(pairs, SIZE))
    for integration, name in pairs:
        assert sum(integration in integrations and name in names for integrations, names in found) == 1


@given(PAIRS)
def test_an_integration_is_divided_only_where_it_is_alone(pairs):
    found = list(rectangles(pairs, SIZE))
    for integrations, names in found:
        assert 0 < len(integrations) <= SIZE
        assert 0 < len(names) <= SIZE
        elsewhere = [other for other in found if other != (integrations, names) and set(integrations) & set(other[0])]
        assert not elsewhere or len(integrations) == 1


def test_many_groups_of_few_integrations_are_few_rectangles():
    pairs = [(f"i{number % 20}", f"rg{number}") for number in range(1_500)]
    assert len(list(rectangles(pairs, 100))) == 20
    assert len(list(rectangles([("i", name) for _, name in pairs], 100))) == 15
    assert len(list(rectangles([(name, "rg") for _, name in pairs], 100))) == 15


def test_nothing_is_no_rectangle():
    assert list(rectangles([], 100)) == []
