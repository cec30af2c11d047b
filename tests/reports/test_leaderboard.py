import re

import pytest

from kvbench.errors import InputError
from kvbench.reports.frames import load
from kvbench.reports.leaderboard import boards, write_leaderboard
from kvbench.reports.site import write_site


def order(*folders) -> list[list[tuple[int, str]]]:
    return [[(place.rank, place.row.standing.who) for place in board.places] for board in boards(load(folders))]


def test_no_speed_lifts_an_adapter_with_findings_above_a_clean_one(make, folder):
    path = folder(
        *make.checks("wrong", {"lifecycle.content": "stale"}), *make.speed("wrong", 9.0),
        *make.checks("slow"), *make.speed("slow", 0.1), *make.checks("fast"), *make.speed("fast", 1.0),
        *make.speed("unknown", 5.0),
    )  # fmt: skip
    assert order(path) == [[(1, "fast"), (2, "slow"), (0, "unknown"), (0, "wrong")]]


def test_a_finding_counts_wherever_the_same_version_is_listed(make, folder):
    caught = folder(*make.checks("a", {"lifecycle.content": "stale"}), name="deep")
    missed = folder(*make.checks("a"), *make.speed("a", 9.0), *make.checks("b"), name="quick")
    assert order(caught, missed) == [[(1, "b"), (0, "a (quick)"), (0, "a (deep)")]]


def test_another_version_is_not_blamed(make, folder):
    old = folder(make.check("a", "s.p", "fail", reason="x"), name="old")
    new = folder(make.check("a", "s.p", version="2.0"), name="new")
    assert order(old, new) == [[(1, "a 2.0"), (0, "a 1.0")]]


def test_machines_have_boards_of_their_own(make, folder):
    here = folder(*make.checks("a"), *make.speed("a", 1.0), name="here")
    there = folder(
        *make.checks("b"), *make.speed("b", 9.0), name="there", environment={**make.environment, "gpu": "Exemplar G1"}
    )
    assert order(here, there) == [[(1, "a")], [(1, "b")]]


def test_more_threads_are_another_machine(make, folder):
    here = folder(*make.checks("a"), name="here")
    more = folder(*make.checks("b"), name="more", environment={**make.environment, "threads": 64})
    assert len(order(here, more)) == 2


def test_figures_of_different_workloads_do_not_rank(make, folder):
    a, b = (make.metric("throughput", name, "share_of_floor", value, "ratio", workload=workload)
            for name, value, workload in (("a", 0.2, "decode 8 x 4096"), ("b", 0.9, "decode 1 x 64")))  # fmt: skip
    more = make.metric("throughput", "c", "share_of_floor", 0.1, "ratio", workload="decode 8 x 4096")
    path = folder(b, a, more, *(make.check(name, "s.p") for name in "abc"))
    (board,) = boards(load([path]))
    assert [(place.row.standing.who, place.decode.shown) for place in board.places] == [
        ("a", "20.0%"), ("c", "10.0%"), ("b", ""),
    ]  # fmt: skip


def test_reports_lie_beside_the_leaderboard(make, folder, tmp_path):
    paths = [folder(*make.checks("a"), name=name) for name in ("First Run", "first-run")]
    page = write_leaderboard(paths, tmp_path / "board")
    links = re.findall(r'href="([^"]+/index\.html)"', page.read_text())
    assert sorted(links) == ["first-run-2/index.html", "first-run/index.html"]
    assert all((page.parent / link).is_file() for link in links)


def test_a_damaged_folder_stops_the_leaderboard_before_anything_is_written(make, folder, tmp_path):
    good, bad = folder(make.check("a", "s.p")), tmp_path / "nothing"
    with pytest.raises(InputError, match="not a result folder"):
        write_leaderboard([good, bad], tmp_path / "board")
    assert not (tmp_path / "board").exists()


def test_one_folder_makes_one_page_and_several_an_index(make, folder, tmp_path):
    one, two = folder(make.check("a", "s.p"), name="one"), folder(make.check("b", "s.p"), name="two")
    single = write_site([one], tmp_path / "single")
    assert [path.name for path in (tmp_path / "single").iterdir()] == ["index.html"]
    assert "a" in single.read_text()
    several = write_site([one, two], tmp_path / "several").read_text()
    assert 'href="one/index.html"' in several
    assert 'href="two/index.html"' in several
