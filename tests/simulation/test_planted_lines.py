"""Each planted bug still has the line of the product that it exchanges.

Belongs here: what costs no world. Does not: whether the judge sees the bug (planted/test_planted.py).
"""

import pytest

from tests.simulation.planted.bugs import BUGS
from tests.simulation.planted.more_bugs import MORE
from tests.simulation.planted.stranger_bugs import STRANGERS

EVERY = {**BUGS, **MORE, **STRANGERS}


@pytest.mark.parametrize("name", sorted(EVERY))
def test_the_line_that_a_bug_exchanges_is_there(name):
    assert EVERY[name]().code()
