"""Names, reasons, files: everything from outside may be meant to do harm."""

import json
import re

import pytest

from kvbench.reports.leaderboard import write_leaderboard
from kvbench.reports.page import write_report
from kvbench.reports.site import write_site
from kvbench.timeline import Timeline, TimelineStep

ATTACKS = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "</style><img src=x onerror=alert(3)>",
    "</title><svg onload=alert(4)>",
    '" onmouseover="alert(5)" x=\'',
    "javascript:alert(6)",
    "{{ 7 * 191 }}{% raw %}",
    "--><!--",
    "]]>",
    "\u202egnp.exe",
    "\ud800",
    "a\0b",
)


def everywhere(make, attack: str) -> list:
    """Records that hold the attack wherever text can be."""
    common = {
        "version": attack,
        "config": {attack: attack},
        "workload": attack,
        "params": {attack: attack, "block_size": attack},
    }
    figures = [
        "effective_utilisation",
        "token_hit_ratio",
        "ideal_token_hit_ratio",
        "decode_bandwidth",
        "kv_bytes",
        attack,
    ]
    measured = [
        make.metric(
            attack,
            attack,
            name,
            0.5,
            attack,
            reason=attack,
            **{**common, "params": {**common["params"], "pool_tokens": 9}},
        )
        for name in figures
    ]
    against = make.metric(
        "t", attack, "relative_speed", 1.2, "x", reason=attack, **{**common, "params": {"baseline": attack}}
    )
    untimed = make.metric("t", attack, "lookup_rate", None, "/s", verdict="skip", reason=attack, **common)
    checks = [
        make.check(
            attack, f"{attack}.{attack} {verdict}", verdict, reason=attack, version=attack, config={attack: attack}
        )
        for verdict in ("pass", "skip", "error")
    ]
    failed = make.check(attack, f"{attack}.fails", "fail", reason=attack, version=attack, counterexample="x.json")
    return [failed, *checks, *measured, against, untimed]


def hostile_folder(make, folder, attack: str, name: str = "run"):
    step = TimelineStep(attack, {attack: (attack, attack + "2"), "1": (attack,)}, wrote=(1,), bad=(1,), note=attack)
    counterexample = make.counterexample(
        attack, attack, version=attack, config={attack: attack}, case={attack: attack}, message=attack, story=(attack,),
        timeline=Timeline(3, (step,)), reproduced=attack, on_reference=attack, versions={attack: attack},
    )  # fmt: skip
    environment = {
        attack: attack,
        "cpu": attack,
        "time": attack,
        "versions": {attack: attack},
        "command": [attack, attack],
    }
    return folder(
        *everywhere(make, attack), name=name, counterexamples=[("x", counterexample)], environment=environment
    )


def assert_inert(page: str) -> None:
    """Only our own markup is markup."""
    assert page.count("<script>") == page.count("</script>") == 1
    assert page.count("</style>") == page.count("</title>") - page.count("<title>", page.index("</head>")) == 1
    for tag in re.findall(r"<[^>]*>", page[page.index("<body>") : page.index("<script>")]):
        assert not re.search(r"<(?:img|iframe|object|embed|base|form|script)\b", tag), tag
        outside_values = re.sub(r'"[^"]*"', "", tag)
        assert not re.search(r"\bon\w+\s*=", outside_values), tag
        for link in re.findall(r'(?:href|src)="([^"]*)"', tag):
            assert re.fullmatch(r"#[a-z0-9-]+|[A-Za-z0-9./_=-]+", link), link
    assert "1337" not in page


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_report_shows_hostile_text_and_does_nothing(make, folder, attack, tmp_path):
    path = hostile_folder(make, folder, attack)
    page = write_report([path], tmp_path / "out").read_text(encoding="utf-8")
    assert_inert(page)
    if attack.startswith("<script>"):
        assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 20


@pytest.mark.parametrize("attack", ATTACKS)
def test_leaderboard_and_index_show_hostile_text_and_do_nothing(make, folder, attack, tmp_path):
    paths = [hostile_folder(make, folder, attack, name) for name in ("one", "two")]
    for write in (write_leaderboard, write_site):
        assert_inert(write(paths, tmp_path / write.__name__).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "name", ["a b", "<b>", "..hidden", "-x", "ünï", "'\"", "con", "x" * 200, "javascript:alert(1)"]
)
def test_folder_names_become_plain_addresses(make, folder, name, tmp_path):
    paths = [folder(make.check("a", "s.p"), name=f"{parent}/{name}") for parent in ("1", "2")]
    out = tmp_path / "site"
    page = write_site(paths, out).read_text()
    links = re.findall(r'href="([^"#]+/index.html)"', page)
    assert len(set(links)) == 2
    for link in links:
        assert re.fullmatch(r"[a-z0-9-]{1,70}/index\.html", link)
        assert (out / link).is_file()


def test_a_deep_or_wide_value_does_not_swell_the_page(make, folder):
    deep: list = []
    for _ in range(300):
        deep = [deep]
    path = folder(make.metric("x", "a", "odd", 1.0, "", params={"deep": deep, "wide": ["y" * 1000] * 1000}))
    (path / "environment.json").write_text(
        json.dumps({"deep": deep, "n": 10**300, "memory_bytes": 10**300, "x_bytes": "?"})
    )
    assert len(write_report([path], path).read_text()) < 100_000
