import re

import pytest

from kvbench.errors import UsageError
from kvbench.reports.frames import load
from kvbench.reports.page import write_report
from kvbench.reports.verdicts import headline, standings
from kvbench.timeline import Timeline, TimelineStep


def sentence(folder) -> str:
    return "".join(text for text, _ in headline(standings(load([folder]))))


def without_tags(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def test_the_headline_says_who_is_clean_and_who_is_not(compared_folder):
    assert sentence(compared_folder) == "reference, torch and contiguous are clean. glacier fails 2 checks."


def test_a_check_that_fails_in_several_precisions_is_one_finding(make, folder):
    failed = [make.check("a", "s.p", "fail", reason=f"wrong in {p}", config={"precision": p}) for p in ("f16", "bf16")]
    passed = make.check("a", "s.p", config={"precision": "f32"})
    path = folder(*failed, passed)
    assert sentence(path) == "a fails 1 check."
    page = write_report([path], path).read_text()
    assert page.count("<article") == 1
    assert "fails in f16, bf16" in page
    assert "wrong in bf16" in page


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["pass"], "a0 is clean."),
        (["pass", "pass", "pass"], "All 3 adapters are clean."),
        (["fail"], "a0 fails 1 check."),
        (["fail", "fail", "fail"], "a0 fails 1 check, a1 fails 1 and a2 fails 1."),
        (["pass", "error"], "a0 is clean. a1 could not be judged on every check."),
        (["pass", "fail", "error"], "a0 is clean. a1 fails 1 check. a2 could not be judged on every check."),
        (["skip"], "Measured, not checked."),
        (["pass", "skip"], "a0 is clean. a1 was not checked."),
        ([], "Nothing has been recorded yet."),
    ],
)
def test_headlines(make, folder, verdicts, said):
    path = folder(*(make.check(f"a{i}", "s.p", verdict) for i, verdict in enumerate(verdicts)))
    assert sentence(path) == said


def test_an_adapter_that_was_asked_nothing_is_not_called_clean(make, folder):
    (only,) = standings(load([folder(make.check("a", "s.p", "skip", reason="no kernel"))]))
    assert only.state == "unchecked"


def test_baselines_and_the_machine_are_no_contestants(make, folder):
    path = folder(
        make.check("torch", "s.p"),
        *make.speed("sdpa-contiguous", 1.2),
        *make.fragmentation("baselines"),
        make.floor(),
        make.ideal(),
        make.against("torch", 0.8, "slower, 0.80x (0.79 to 0.81)"),
    )
    assert [standing.who for standing in standings(load([path]))] == ["torch"]


def test_a_finding_tells_all_that_is_needed_to_see_it_again(compared_folder):
    page = write_report([compared_folder], compared_folder).read_text()
    text = without_tags(page)
    assert "block 1 was given out again although b still held it" in text
    assert "kvbench replay counterexamples/glacier-lifecycle.content.json" in text
    assert "3 of 3" in text
    assert "fork a to b: b holds 0, 1, 2 too" in text
    assert "b reads c&#39;s token 0 where its own token 4 belongs" in text
    assert "&#34;block_size&#34;: 4" in text


def test_reasons_of_skips_are_on_the_page(compared_folder):
    text = without_tags(write_report([compared_folder], compared_folder).read_text())
    assert "torch has no manager of its own" in text
    assert "not timed: it has no kernel of its own" in text


def test_figures_show_what_the_records_hold(compared_folder):
    text = without_tags(write_report([compared_folder], compared_folder).read_text())
    for shown in (
        "96.7%",
        "24.0%",
        "reserve-max",
        "ideal 40.5%",
        "14.00 GB/s",
        "memory reads 20.00 GB/s",
        "no difference larger than 3 %",
        "cloud cover",
        "Exemplar 9000 2-Core Processor, 2 cores, 24 GiB",
    ):
        assert shown in text, shown


def test_adapters_with_the_same_figures_share_a_chart(compared_folder):
    page = write_report([compared_folder], compared_folder).read_text()
    assert "<strong>reference, glacier</strong>" in page


def test_empty_sections_say_what_fills_them(make, folder):
    path = folder()
    text = without_tags(write_report([path], path).read_text())
    for command in ("verify ADAPTER", "run fragmentation", "run prefix-sharing", "run throughput"):
        assert f"kvbench {command}" in text, command


def test_the_page_refuses_everything_but_its_own_style_and_script(compared_folder):
    page = write_report([compared_folder], compared_folder).read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy
    assert "http:" not in page
    assert "https:" not in page
    assert " style=" not in page
    assert not re.search(r"\son\w+=", page)


def test_a_page_elsewhere_takes_its_counterexamples_along(compared_folder, tmp_path):
    page = write_report([compared_folder], tmp_path / "site")
    for link in re.findall(r'href="(counterexamples/[^"]+)"', page.read_text()):
        assert (page.parent / link).is_file()
    assert len(list((tmp_path / "site/counterexamples").iterdir())) == 2


def test_counterexamples_of_several_folders_do_not_replace_each_other(make, folder, tmp_path):
    paths = []
    for name in ("one", "two"):
        failed = make.check("a", "s.p", "fail", reason=f"wrong in {name}", counterexample="same.json")
        saved = [("same", make.counterexample("s.p", "a", message=f"wrong in {name}"))]
        paths.append(folder(failed, name=name, counterexamples=saved))
    page = write_report(paths, tmp_path / "both")
    links = re.findall(r'href="(counterexamples/[^"]+)"', page.read_text())
    assert links == ["counterexamples/one/same.json", "counterexamples/two/same.json"]
    assert "wrong in two" in (page.parent / links[1]).read_text()


def test_a_place_that_cannot_be_written_is_one_clear_line(compared_folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="cannot write the page"):
        write_report([compared_folder], tmp_path / "file")


# --------------------------------------------------------------------------------------------------------------------
# Timelines
# --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def drawn(make, folder):
    """The page of one finding with this timeline."""

    def draw(timeline: Timeline) -> str:
        saved = [("x", make.counterexample("s.p", "a", timeline=timeline))]
        failed = make.check("a", "s.p", "fail", reason="wrong", counterexample="x.json")
        path = folder(failed, counterexamples=saved)
        return write_report([path], path).read_text()

    return draw


def test_a_timeline_shows_owners_writes_reads_and_the_bad_block(drawn, make):
    page = drawn(make.timeline)
    assert page.count('class="ring"') == 2  # the block, and the legend
    assert "step 6, block 1: held by b and c, read. b reads c&#39;s token 0" in page
    assert "step 3, block 3: held by b, written" in page
    assert '<li value="6" class="bad">decode b' in page
    assert "7 of 12 blocks are never touched" in page
    assert page.count("<pattern") == 2  # a and b, b and c


def test_a_block_written_while_nobody_holds_it_is_drawn(drawn):
    page = drawn(Timeline(4, (TimelineStep("write past the end", {}, wrote=(3,), bad=(3,)),)))
    assert "step 1, block 3: free, written" in page


def test_a_huge_timeline_keeps_the_step_that_goes_wrong(drawn):
    def step(number: int) -> TimelineStep:
        owners = {str(block): (f"sequence-{block % 97}",) for block in range(number, number + 50)}
        return TimelineStep(f"step number {number}", owners, bad=(325,) if number == 300 else ())

    page = drawn(Timeline(10**9, tuple(step(number) for number in range(500))))
    assert len(page) < 1_000_000
    assert '<li value="301" class="bad">step number 300' in page
    assert "step 301, block 325" in page
    assert "steps are not shown" in page


def test_names_that_are_long_get_letters(drawn):
    page = drawn(Timeline(2, (TimelineStep("begin", {"0": ("request-17",), "1": ("request-18",)}),)))
    assert ">A</text>" in page
    assert "request-18" in page


def test_blocks_need_not_be_numbers(drawn):
    page = drawn(Timeline(2, (TimelineStep("begin", {"host 3": ("a",), "1": ("a",), "9" * 40: ()}),)))
    assert "block host 3" in page


def test_noise_is_told_once_and_not_under_every_chart(make, folder):
    noisy = [
        make.metric("throughput", "a", name, 1.0, unit, workload="decode", reason="noisy: rounds scatter")
        for name, unit in (("decode_bandwidth", "bytes/s"), ("decode_tokens_per_second", "tokens/s"))
    ]
    path = folder(*noisy)
    page = write_report([path], path).read_text()
    assert page.count("<li>a, decode: noisy: rounds scatter</li>") == 1


def test_the_growth_of_the_cache_is_drawn_where_it_is_recorded(make, folder):
    path = folder(
        *(
            make.metric("growth", "m", "kv_bytes", 131072.0 * n, "bytes", workload="bf16", params={"context": n})
            for n in (1024, 4096)
        )
    )
    text = without_tags(write_report([path], path).read_text())
    assert "How the cache grows" in text
    assert "512 MiB" in text
    assert "not checked" not in text


def test_an_unknown_metric_is_in_a_table(compared_folder):
    text = without_tags(write_report([compared_folder], compared_folder).read_text())
    assert "glacier cloud cover alps 30.0%" in text
