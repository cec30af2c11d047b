import pytest

from kvbench.budget import effort, parse_budget
from kvbench.errors import UsageError


def test_a_budget_is_a_name_or_a_time():
    assert parse_budget("quick").examples < parse_budget("standard").examples < parse_budget("deep").examples
    assert parse_budget("1.5m").total_seconds == 90
    assert parse_budget("1h").total_seconds == 3600


@pytest.mark.parametrize("text", ["", "fast", "30", "-5s", "0s", "25h", "30 s", "s", "1e9s"])
def test_another_budget_is_refused_with_what_is_allowed(text):
    with pytest.raises(UsageError, match="use quick, standard, deep or a time"):
        parse_budget(text)


def test_a_time_is_shared_among_the_checks():
    share = effort(parse_budget("30s"), seed=7, checks=10)
    assert share.seconds == 3
    assert share.until_time
    assert share.seed == 7
