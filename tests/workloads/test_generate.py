import numpy as np
import pytest

from kvbench.errors import UsageError
from kvbench.workloads import TRACES, get_trace, ideal_reuse, list_traces
from kvbench.workloads.statistics import LEVELS, WORKLOADS, Quantiles, Workload

SEEDS = (0, 1)
NAMES = [workload.name for workload in WORKLOADS]
BY_NAME = {workload.name: workload for workload in WORKLOADS}


def expected_mean(workload: Workload, kind: str) -> float:
    """Mean over first requests and follow-ups."""
    first = getattr(workload, kind).mean
    if workload.sharing is None:
        return first
    share = workload.sharing.follow_up
    return (1 - share) * first + share * getattr(workload.sharing, kind).mean


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_lengths_have_the_published_means(name, seed):
    requests = get_trace(name, seed=seed).requests
    prompt = np.mean([request.prompt_tokens for request in requests])
    output = np.mean([request.output_tokens for request in requests])
    assert prompt == pytest.approx(expected_mean(BY_NAME[name], "prompt"), rel=0.06)
    assert output == pytest.approx(expected_mean(BY_NAME[name], "output"), rel=0.13)


@pytest.mark.parametrize("kind", ["prompt", "output"])
@pytest.mark.parametrize("name", ["azure-conv", "azure-code"])
def test_medians_and_tails_are_those_of_the_published_trace(name, kind):
    drawn = [getattr(request, f"{kind}_tokens") for request in get_trace(name).requests]
    target = getattr(BY_NAME[name], kind)
    assert isinstance(target, Quantiles)
    for level in (0.5, 0.9, 0.99):
        assert np.quantile(drawn, level) == pytest.approx(target.values[LEVELS.index(level)], rel=0.08), level


@pytest.mark.parametrize("name", NAMES)
def test_arrivals_start_at_zero_never_go_back_and_have_the_published_rate(name):
    workload = BY_NAME[name]
    arrivals = np.array([request.arrival for request in get_trace(name).requests])
    assert arrivals[0] == 0.0
    assert (np.diff(arrivals) >= 0).all()
    spread = 4 * max(workload.arrivals.variation, 1.0) / np.sqrt(workload.count)  # four standard errors of the mean gap
    assert len(arrivals) / arrivals[-1] == pytest.approx(workload.arrivals.rate, rel=spread)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [workload.name for workload in WORKLOADS if workload.sharing])
def test_prefixes_are_shared_as_much_as_in_the_published_trace(name, seed):
    trace = get_trace(name, seed=seed)
    assert ideal_reuse(trace).ratio == pytest.approx(BY_NAME[name].sharing.ideal_token_hit_ratio, abs=0.06)


def test_every_prompt_of_the_long_chat_trace_begins_with_the_system_prompt():
    trace = get_trace("mooncake-conv", limit=500)
    assert {request.hash_ids[0] for request in trace.requests} == {0}
    sessions = [request.session for request in trace.requests]
    assert 1 < len(set(sessions)) < len(sessions)


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_trace_again_and_another_seed_another(name):
    assert get_trace(name, limit=50, seed=3) == get_trace(name, limit=50, seed=3)
    assert get_trace(name, limit=50, seed=3).requests != get_trace(name, limit=50, seed=4).requests


def test_a_limited_trace_is_the_beginning_of_the_whole():
    assert get_trace("azure-conv", limit=10).requests == get_trace("azure-conv").requests[:10]


def test_the_list_names_every_trace_with_its_source():
    rows = list(list_traces())
    assert [row["name"] for row in rows] == list(TRACES)
    assert all(row["source"] and row["about"] for row in rows)


def test_an_unknown_name_is_refused_with_the_nearest_known_one():
    with pytest.raises(UsageError, match="did you mean 'azure-conv'"):
        get_trace("azure-cnov")


def test_a_limit_that_leaves_nothing_is_refused():
    with pytest.raises(UsageError, match="at least 1"):
        get_trace("azure-conv", limit=0)


def test_a_path_is_read_as_a_file(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("arrival,prompt_tokens,output_tokens\n0,3,4\n")
    assert get_trace(path).name == "mine.csv"
