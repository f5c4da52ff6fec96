"""How long a run may take, as people say it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.errors import SuiteError
from fixtures.session.budget_time import TimeLimit, time_limit

EVENING, NOON = datetime(2026, 3, 1, 23, 30), datetime(2026, 3, 1, 12, 0)


@pytest.mark.parametrize(
    ("text", "seconds"), [("8h", 28800), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("0.5h", 1800), (" 2h ", 7200)]
)
def test_a_length(text: str, seconds: float) -> None:
    assert time_limit("--budget", text, NOON) == TimeLimit(seconds)


@pytest.mark.parametrize(
    ("text", "now", "wait", "hours"),
    [
        ("22:00-06:00", EVENING, 0, 6.5),
        ("22:00-06:00", NOON, 10, 8),
        ("22:00-06:00", datetime(2026, 3, 1, 5, 0), 0, 1),
        ("13:00-14:00", NOON, 1, 1),
        ("11:00-12:30", NOON, 0, 0.5),
        ("09:00-10:00", NOON, 21, 1),
    ],
)
def test_a_stretch_of_the_day(text: str, now: datetime, wait: float, hours: float) -> None:
    assert time_limit("--budget", text, now) == TimeLimit(hours * 3600, wait * 3600)


@pytest.mark.parametrize(
    "text", ["", "8", "h", "-1h", "0m", "8 hours", "25:00-06:00", "22:60-06:00", "9000h0m0s1", "1e9h"]
)
def test_no_time_is_refused_with_what_to_give(text: str) -> None:
    with pytest.raises(SuiteError, match=r"^--budget .*give"):
        time_limit("--budget", text, NOON)


@given(
    begin=st.times().map(lambda at: at.replace(second=0, microsecond=0)),
    end=st.times().map(lambda at: at.replace(second=0, microsecond=0)),
    now=st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31)),
)
def test_a_stretch_ends_when_it_says(begin: object, end: object, now: datetime) -> None:
    text = f"{begin:%H:%M}-{end:%H:%M}"
    if begin == end:
        return
    found = time_limit("--budget", text, now)
    assert 0 < found.seconds <= 24 * 3600
    assert 0 <= found.wait_s < 24 * 3600
    ends = now + timedelta(seconds=found.wait_s + found.seconds)
    due = ends.replace(hour=end.hour, minute=end.minute, second=0, microsecond=0)  # type: ignore[attr-defined]
    assert abs((ends - due).total_seconds()) < 1e-3
