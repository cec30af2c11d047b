import numpy as np
import pytest

from kvbench.measure.race import race
from kvbench.measure.statistics import compare, median, noise_warning, paired_ratio


def test_the_median_lies_within_its_interval():
    found = median([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.value == 3.0
    assert 1.0 <= found.low <= found.value <= found.high <= 100.0


def test_a_median_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        median([])


def test_samples_of_different_rounds_cannot_be_paired():
    with pytest.raises(ValueError, match="differ in number: 2 and 1"):
        paired_ratio([1.0, 2.0], [1.0])


def test_twice_as_fast_in_every_round_is_faster_however_the_machine_drifts():
    drift = np.linspace(1, 5, 20)
    outcome = compare(1.0 * drift, 2.0 * drift)
    assert outcome.verdict == "faster"
    assert outcome.ratio.value == pytest.approx(2.0)


def test_slower_is_told_apart_from_faster():
    assert compare([3.0] * 10, [1.0] * 10).verdict == "slower"


@pytest.mark.parametrize("seed", range(20))
def test_an_adapter_compared_with_itself_shows_no_difference(seed):
    random = np.random.default_rng(seed)
    same = random.lognormal(0, 0.02, size=(2, 40))
    outcome = compare(same[0], same[1], seed=seed)
    assert outcome.verdict == "no difference"
    assert outcome.text.startswith("no difference larger than ")


def test_a_difference_below_two_percent_is_not_called_one():
    assert compare([1.0] * 10, [1.01] * 10).text == "no difference larger than 2 %"


def test_scattered_rounds_are_warned_about():
    assert noise_warning([1.0, 1.01, 0.99, 1.0]) is None
    assert "noisy" in str(noise_warning([1.0, 2.0, 0.5, 3.0]))
    assert noise_warning([1.0]) == "fewer than 3 rounds"


def test_a_race_gives_every_contestant_the_same_rounds_in_changing_order():
    order = []
    contestants = {name: lambda turn, name=name: order.append((turn, name)) for name in "abc"}
    times = race(contestants, rounds=8, seed=1, seconds=60, warm_up=0)
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 8, "b": 8, "c": 8}
    by_round = [tuple(name for turn, name in order if turn == number) for number in range(8)]
    assert all(sorted(names) == ["a", "b", "c"] for names in by_round)
    assert len(set(by_round)) > 1


def test_a_race_out_of_time_still_has_its_minimum_of_rounds():
    times = race({"a": lambda turn: None}, rounds=100, seed=0, seconds=0.0, minimum=4)
    assert len(times["a"]) == 4
