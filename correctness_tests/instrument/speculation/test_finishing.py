"""Where an answer must end, whatever came in one verify pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from known_defects import expected_by_run

from fixtures.speculation.answers import Answer, Ask, Finish
from fixtures.speculation.finishing import expected, judge_finish

EOS = frozenset({2})


def decode(tokens: Any) -> str:
    return "".join(chr(96 + token) for token in tokens)  # 1 is a, 2 is b, 3 is c


def ask(**sampling: Any) -> Ask:
    return Ask("case", (9,), {"max_new_tokens": 6, **sampling})


def answer(tokens: list[int], kind: str, matched: int | str | None = None, text: str | None = None) -> Answer:
    """text: that of the ids, unless given; a stop token has none."""
    said = decode(tokens[:-1] if isinstance(matched, int) else tokens) if text is None else text
    return Answer(tuple(tokens), said, Finish(kind, matched, len(tokens)), completion_tokens=len(tokens))


@pytest.mark.parametrize(
    ("sampling", "tokens", "finish"),
    [
        ({}, [1, 3, 4, 5, 6, 7], Finish("length", None, 6)),
        ({}, [1, 3, 2, 5], Finish("stop", 2, 3)),
        ({"ignore_eos": True}, [1, 3, 2, 5], None),
        ({"stop_token_ids": [4]}, [1, 3, 4, 5], Finish("stop", 4, 3)),
        ({"stop": "cd"}, [1, 3, 4, 5], Finish("stop", "cd", 3)),
        ({"stop": ["zz", "d"], "stop_token_ids": [3]}, [1, 3, 4], Finish("stop", 3, 2)),  # the stop token came first
        ({"stop": ["cd"], "stop_token_ids": [4]}, [1, 3, 4], Finish("stop", "cd", 3)),  # both at once: the string
        ({"stop_token_ids": [7]}, [1, 3, 4, 5, 6, 7], Finish("stop", 7, 6)),  # at the cap: the stop
    ],
)
def test_the_first_finish_ends_the_answer(sampling: dict[str, Any], tokens: list[int], finish: Finish | None) -> None:
    assert expected(tokens, ask(**sampling), EOS, decode) == finish


@pytest.mark.parametrize(
    ("sampling", "given", "says"),
    [
        ({}, answer([1, 3, 4, 5, 6, 7, 8], "length"), "length after 7 tokens; it must end: length after 6"),
        ({}, answer([1, 3], "length"), "nothing asked for ends it there"),
        ({"stop_token_ids": [3]}, answer([1, 3, 4], "stop", 3), "it must end: stop on 3 after 2 tokens"),
        ({"stop_token_ids": [3]}, answer([1, 3], "length"), "it must end: stop on 3"),
        ({"stop_token_ids": [3]}, answer([1, 3], "stop", 4), "must end on 3"),
        ({"stop": "c"}, answer([1, 3], "stop", "c", "ac"), "2 characters where the ids have 1: after 'a' it has 'c'"),
        ({}, answer([1, 3, 4, 5, 6, 7], "length", text="acdef"), "after 'acdef' it has '', the ids 'g'"),
        ({}, answer([1, 3, 4, 5, 6, 7], "length", text="acefg"), "after 'ac' it has 'efg', the ids 'defg'"),
        ({}, answer([1, 3, 2], "stop", 2, "acb"), "after 'ac' it has 'b', the ids ''"),
        ({"no_stop_trim": True}, answer([1, 3, 2], "stop", 2, "ac"), "after 'ac' it has '', the ids 'b'"),
        ({"stop": "c", "no_stop_trim": True}, answer([1, 3], "stop", "c", "a"), "after 'a' it has '', the ids 'c'"),
        ({}, Answer((1,), completion_tokens=1), "no finish reason"),
        ({}, Answer((2,), finish=Finish("stop", 2, 1), completion_tokens=3), "1 tokens came, 3 are counted"),
        ({}, replace(answer([1, 3, 2], "stop", 2), broken="event 2 takes back tokens"), "stream: event 2 takes back"),
        ({}, Answer((1, 3), "b", aborted=True), "after '' it has 'b', the ids 'ac'"),
    ],
)
def test_another_finish_is_named(sampling: dict[str, Any], given: Answer, says: str) -> None:
    found = judge_finish(ask(**sampling), given, EOS, decode)
    assert any(says in str(finding) for finding in found), found


def test_right_finishes_and_aborts_pass() -> None:
    assert not judge_finish(ask(), answer([1, 3, 2], "stop", 2), EOS, decode)
    assert not judge_finish(ask(stop="c"), answer([1, 3], "stop", "c", "a"), EOS, decode)
    assert not judge_finish(ask(stop="c", no_stop_trim=True), answer([1, 3], "stop", "c"), EOS, decode)
    assert not judge_finish(ask(no_stop_trim=True), answer([1, 3, 2], "stop", 2, "acb"), EOS, decode)
    assert not judge_finish(ask(), Answer((1, 3), aborted=True), EOS, decode)
    assert not judge_finish(ask(), Answer((1, 3), "a\ufffd", aborted=True), EOS, decode)


def test_sglangs_own_order_within_a_run() -> None:
    """A stop string of the whole run comes before a stop token in it; in another run it comes too late."""
    asked = ask(stop=["ef"], stop_token_ids=[4])
    one = Answer((1, 3, 4, 5, 6), runs=(1, 4))
    two = Answer((1, 3, 4, 5, 6), runs=(1, 2, 2))
    assert expected_by_run(one, asked, EOS, decode) == Finish("stop", "ef", 5)
    assert expected_by_run(two, asked, EOS, decode) == Finish("stop", 4, 3)
    assert expected_by_run(Answer((1, 3, 4), runs=(1, 2)), ask(stop_token_ids=[4]), EOS, decode) == Finish("stop", 4, 3)
