import json

import pytest

from kvbench.errors import InputError, UsageError
from kvbench.results import SCHEMA, Record, ResultFolder, read_records

RECORD = Record(suite="correctness", adapter="mine", version="1", check="correctness.numbers", verdict="pass")


def test_records_are_on_disk_as_soon_as_they_are_made(tmp_path):
    with ResultFolder(tmp_path / "out") as folder:
        stamped = folder.append(RECORD)
        assert list(read_records(folder.path)) == [stamped]
        assert stamped.run == folder.run


def test_a_folder_with_results_is_not_written_over(tmp_path):
    ResultFolder(tmp_path).close()
    with pytest.raises(UsageError, match="already holds results; choose another --out, or add --resume"):
        ResultFolder(tmp_path)


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    with ResultFolder(tmp_path) as folder:
        folder.append(RECORD)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"suite": "correctness", "adap')
    with ResultFolder(tmp_path, resume=True) as folder:
        assert folder.done(RECORD) is not None
        assert folder.done(Record(suite="correctness", adapter="other", version="1", check="c")) is None
        folder.append(Record(suite="lifecycle", adapter="mine", version="1", check="lifecycle.manager", verdict="fail"))
    assert [record.suite for record in read_records(tmp_path)] == ["correctness", "lifecycle"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("not json", "results.jsonl:2: not a JSON record"),
        ('{"suite": "s"}', "results.jsonl:2: field 'adapter' is missing"),
        ("[]", "results.jsonl:2: expected an object (Record)"),
        (json.dumps({"schema": SCHEMA + 1}), f"schema {SCHEMA + 1} is newer than this kvbench reads"),
        (
            '{"suite": "s", "adapter": "a", "version": "1", "verdict": "great"}',
            "results.jsonl:2.verdict: expected one of",
        ),
    ],
)
def test_a_damaged_record_is_named_by_line(tmp_path, line, complaint):
    with ResultFolder(tmp_path) as folder:
        folder.append(RECORD)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError) as refused:
        list(read_records(tmp_path))
    assert complaint in str(refused.value)


def test_what_is_not_a_result_folder_is_said_to_be_none(tmp_path):
    with pytest.raises(InputError, match="is not a result folder"):
        list(read_records(tmp_path / "nowhere"))
    (tmp_path / "results.jsonl").write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(InputError, match="cannot read"):
        list(read_records(tmp_path))


def test_a_folder_that_cannot_be_written_is_wrong_usage(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write results to"):
        ResultFolder(tmp_path / "file" / "below")


def test_the_name_of_a_counterexample_stays_in_its_folder(tmp_path):
    with ResultFolder(tmp_path) as folder:
        name = folder.write_counterexample("../../evil/<b> name", {"a": 1})
    assert "/" not in name
    assert (tmp_path / "counterexamples" / name).is_file()
