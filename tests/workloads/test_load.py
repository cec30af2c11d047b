import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.workloads import Request, Trace, load_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
PLAIN = "arrival,prompt_tokens,output_tokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
MOONCAKE = '{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'


@pytest.fixture
def load(tmp_path):
    def load(content, **options):
        path = tmp_path / "trace.file"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_trace(path, **options)

    return load


def refusal(load, content):
    """The message with which a file is refused: one line that names the file."""
    with pytest.raises(InputError) as refused:
        load(content)
    message = str(refused.value)
    assert "trace.file" in message
    assert "\n" not in message
    return message


def bailian(chat, parent, at, tokens, ids):
    return json.dumps(
        {
            "chat_id": chat,
            "parent_chat_id": parent,
            "timestamp": at,
            "input_length": tokens,
            "output_length": 7,
            "type": "text",
            "turn": 1,
            "hash_ids": ids,
        }
    )


def test_azure_dates_become_seconds_since_the_first_request(load):
    trace = load(AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.1805900,396,109\n")
    assert trace.requests == (Request(0.0, 374, 44), Request(pytest.approx(3.5), 396, 109))
    assert trace.hash_block is None


def test_azure_dates_may_carry_a_time_zone(load):
    trace = load(AZURE + "2024-05-10 00:00:00+00:00,1,1\n2024-05-10 02:00:01+02:00,1,1\n")
    assert trace.requests[1].arrival == pytest.approx(1.0)


def test_burstgpt_requests_that_failed_are_left_out_and_counted(load):
    trace = load(BURST + "5,ChatGPT,472,18,490,Conversation log\n9,GPT-4,0,0,0,API log\n45,GPT-4,10,0,10,API log\n")
    assert trace.requests == (Request(0.0, 472, 18),)
    assert trace.notes == ("2 failed requests (0 request or response tokens) left out",)


def test_burstgpt_sessions_are_kept_where_the_release_has_them(load):
    trace = load(BURST.replace("Model", "Session ID,Model") + "5,17,ChatGPT,472,18,490,Conversation log\n")
    assert trace.requests[0].session == "17"


def test_mooncake_milliseconds_become_seconds_and_ids_stand_for_512_tokens(load):
    trace = load(MOONCAKE + MOONCAKE.replace("3000", "4500"))
    assert trace.hash_block == 512
    assert trace.requests == (Request(0.0, 600, 5, (0, 1)), Request(1.5, 600, 5, (0, 1)))


def test_bailian_chats_of_one_conversation_share_a_session(load):
    lines = [bailian(5, -1, 0.5, 20, [1, 2]), bailian(9, 5, 1.5, 40, [1, 2, 3]), bailian(11, 9, 2.5, 48, [1, 2, 3])]
    trace = load("\n".join(lines))
    assert trace.hash_block == 16
    assert [request.session for request in trace.requests] == ["5", "5", "5"]
    assert [request.arrival for request in trace.requests] == [0.0, 1.0, 2.0]


def test_each_sharegpt_answer_is_a_request_whose_prompt_is_all_that_came_before(load):
    said = [("human", "x" * 100), ("gpt", "y" * 20), ("human", "z" * 50), ("gpt", "w" * 9)]
    conversation = {"id": "c", "conversations": [{"from": who, "value": text} for who, text in said]}
    trace = load(json.dumps([conversation, {"id": "d", "conversations": []}], indent=1))
    first = len("human: ") + 100 + 1
    second = first + len("gpt: ") + 20 + 1 + len("human: ") + 50 + 1
    assert [r.prompt_tokens for r in trace.requests] == [-(-first // 4), -(-second // 4)]
    assert [r.output_tokens for r in trace.requests] == [5, 3]
    assert trace.requests[1].hash_ids[:1] == trace.requests[0].hash_ids == trace.requests[1].hash_ids[: first // 64]
    assert len(trace.requests[1].hash_ids) == second // 64
    assert any("4 characters" in note for note in trace.notes)


def test_sharegpt_conversations_that_open_alike_share_ids_only_so_far(load):
    def entry(text):
        return {"conversations": [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]}

    trace = load("\n".join(json.dumps(entry("s" * 64 + mark * 64)) for mark in "ab"))
    one, other = (request.hash_ids for request in trace.requests)
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_plain_tables_are_read_whatever_the_order_of_columns_case_or_byte_order_mark(load):
    trace = load("\ufeff\nOutput_Tokens, Prompt_Tokens,note,Arrival\r\n4,3,x,1.5\r\n\r\n")
    assert trace.requests == (Request(0.0, 3, 4),)


def test_requests_out_of_order_are_sorted_and_the_notes_say_so(load):
    trace = load(PLAIN + "2,5,1\n1,6,1\n")
    assert trace.requests == (Request(0.0, 6, 1), Request(1.0, 5, 1))
    assert "sorted" in trace.notes[0]


def test_a_limit_takes_the_first_requests_and_reads_no_further(load):
    assert len(load(PLAIN + "0,1,1\n1,1,1\nbroken\n", limit=2).requests) == 2


@pytest.mark.parametrize(
    ("content", "line", "wrong", "expected"),
    [
        (PLAIN + "0,1,1\n1,-5,1\n", 3, "'-5'", "1 to 100000000"),
        (PLAIN + "0,1,1\n1,0,1\n", 3, "prompt_tokens is '0'", "1 to"),
        (PLAIN + "0,nan,1\n", 2, "'nan'", "whole number"),
        (PLAIN + "0,1.5,1\n", 2, "'1.5'", "whole number"),
        (PLAIN + "0,1,1e30\n", 2, "'1e30'", "100000000"),
        (PLAIN + "-1,1,1\n", 2, "arrival is '-1'", "at least 0"),
        (PLAIN + "inf,1,1\n", 2, "'inf'", "at least 0"),
        (PLAIN + "0,1\n", 2, "2 fields", "expected 3"),
        (PLAIN + "0,1,1\n\n\n0,,1\n", 5, "prompt_tokens is ''", "whole number"),
        (PLAIN + '0,"1"x,1\n', 2, "expected after", "comma-separated"),
        (AZURE + "yesterday,1,1\n", 2, "'yesterday'", "2023-11-16"),
        (MOONCAKE + "{broken\n", 2, "not valid JSON", "input_length"),
        (MOONCAKE + "[]\n", 2, "not an object", "input_length"),
        (MOONCAKE + '{"timestamp": 1}\n', 2, "no input_length, output_length, hash_ids", "expected"),
        (MOONCAKE + MOONCAKE.replace("600", '"many"'), 2, "'many'", "whole number"),
        (MOONCAKE + MOONCAKE.replace("600", "true"), 2, "True", "whole number"),
        (MOONCAKE + MOONCAKE.replace("3000", "NaN"), 2, "timestamp is nan", "at least 0"),
        (MOONCAKE + MOONCAKE.replace("[0, 1]", "[0, 1, 2]"), 2, "3 hash_ids", "at most 2"),
        (MOONCAKE + MOONCAKE.replace("[0, 1]", "[0, -1]"), 2, "hash_ids", "2**63"),
        (MOONCAKE + MOONCAKE.replace("[0, 1]", '"0"'), 2, "hash_ids", "list"),
        ('[{"conversations": []},\n {"conversations": 3}]', 2, "not a conversation", "conversations"),
        ('[{"conversations": [\n{"from": "human"}]}]', 1, "without speaker or text", "value"),
        ('[{"conversations": []},\n', 2, "does not end", "complete"),
        ('[{"conversations": [}', 1, "not valid JSON", "conversations"),
    ],
)
def test_a_broken_line_is_named_with_what_is_wrong_and_what_is_expected(load, content, line, wrong, expected):
    message = refusal(load, content)
    assert f"line {line}:" in message
    assert wrong in message
    assert expected in message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\x89PNG\0\0\0", "binary"),
        (PLAIN.encode("utf-16"), "binary"),
        (b"arrival,prompt_tokens,output_tokens\n0,1,\xff\n", "not UTF-8"),
        (PLAIN, "no requests"),
        ("[]", "no requests"),
        ("a,b,c\n1,2,3\n", "no known trace format"),
        ("0,1,2\n", "arrival,prompt_tokens,output_tokens"),
        ('{"some": "object"}\n', "no known trace format"),
        (BURST + "9,GPT-4,0,0,0,API log\n", "no requests"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(load, content, says):
    assert says in refusal(load, content)


@pytest.mark.parametrize(
    ("name", "says"), [("absent.csv", "does not exist"), (".", "folder"), ("a\0b", "not exist|cannot read")]
)
def test_a_path_that_is_no_file_is_refused(tmp_path, name, says):
    with pytest.raises(InputError, match=says):
        load_trace(tmp_path / name)


def test_a_device_is_refused_instead_of_read_for_ever():
    with pytest.raises(InputError, match="not a regular file"):
        load_trace("/dev/zero")


OPENINGS = [AZURE, PLAIN, BURST, MOONCAKE, bailian(1, -1, 0, 16, [1]) + "\n", "[", '[{"conversations": [', "\ufeff", ""]
MUTATED_LINES = st.sampled_from([MOONCAKE, "2023-11-16 18:15:46,1,2\n", "5,ChatGPT,4,1,5,API log\n", "0,1,1\n"])


@given(
    opening=st.sampled_from(OPENINGS),
    lines=st.lists(MUTATED_LINES, max_size=3),
    at=st.integers(0, 200),
    put=st.binary(max_size=12) | st.sampled_from([b"9" * 5000, b"[" * 3000, b"1e999", b"NaN", b'"', b"\0", b"-"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
def test_any_bytes_are_a_trace_or_an_input_error(tmp_path, opening, lines, at, put):
    content = (opening + "".join(lines)).encode()
    path = tmp_path / "fuzzed"
    path.write_bytes(content[:at] + put + content[at:])
    outcome = trace_or_refusal(path)
    if isinstance(outcome, Trace):
        assert outcome.requests[0].arrival == 0.0
        assert all(request.prompt_tokens >= 1 for request in outcome.requests)
    else:
        assert "\n" not in outcome


def trace_or_refusal(path):
    try:
        return load_trace(path)
    except InputError as error:
        return str(error)


def test_twenty_thousand_lines_load_in_under_a_second(load):
    rows = "".join(f"2023-11-16 18:{i // 60 % 60:02}:{i % 60:02}.6805900,{i + 1},44\n" for i in range(20_000))
    before = time.process_time()
    assert len(load(AZURE + rows).requests) == 20_000
    assert time.process_time() - before < 2.0  # a second of a quiet machine
