"""What a type says is all that a file may say: each way of saying something else is one line with its place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypedDict

import pytest

from fixtures.shape import Moment, Name, Share, Within, like, made, plain


class Open(TypedDict):
    times: Annotated[list[float], Within(1)]


@dataclass(frozen=True)
class Inner:
    OPTIONAL: ClassVar = ()
    name: Name
    way: Literal["up", "down"] = "up"

    def implausible(self) -> str | None:
        return "name = 'down': it goes up" if (self.name, self.way) == ("down", "up") else None


@dataclass(frozen=True)
class Whole:
    count: int
    figure: Annotated[float, Within(1e-9, 10, math.nan)]
    share: Share | None
    at: Moment
    inner: tuple[Inner, ...]
    pair: tuple[str, bool]
    by_count: Mapping[int, int]
    table: Open
    same: Annotated[dict[str, Any], like(Inner)]
    left: list[int] = field(default_factory=list)


GOOD: dict[str, Any] = {
    "count": 0, "figure": 3, "share": None, "at": "2026-01-01T00:00:00Z", "inner": [{"name": "a", "way": "down"}],
    "pair": ["a", True], "by_count": {"12": 4}, "table": {"times": [0.5, 1], "more": None},
    "same": {"name": "b", "way": "up"},
}  # fmt: skip


def test_what_is_read_is_written_again() -> None:
    found = made(Whole, GOOD)
    assert found.inner == (Inner("a", "down"),)
    assert found.by_count == {12: 4}
    assert found.same == GOOD["same"]
    assert found.table is GOOD["table"]
    assert plain(found) == {**GOOD, "left": []}
    missing = made(Whole, {**GOOD, "figure": None})
    assert math.isnan(missing.figure)
    assert plain(missing)["figure"] is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"count": -1}, "count = -1: no count from 0"),
        ({"count": 1.0}, "count = 1.0: no count"),
        ({"count": True}, "count = True: no count"),
        ({"figure": 11}, "figure = 11: no figure from 1e-09 to 10"),
        ({"share": 1.5}, "share = 1.5: no figure from 0 to 1"),
        ({"at": "2026-02-30T00:00:00Z"}, "at = '2026-02-30T00:00:00Z': is no time"),
        ({"inner": {}}, "inner = {}: no list"),
        ({"inner": [{"name": ""}]}, "inner/0: 'way' is a required property"),
        ({"inner": [{"name": "", "way": "up"}]}, "inner/0/name = '': it is empty"),
        ({"inner": [{"name": "a", "way": "left"}]}, "inner/0/way = 'left': none of up, down"),
        ({"inner": [{"name": "a", "way": "up", "ways": 1}]}, "inner/0: 'ways' is not known"),
        ({"inner": [{"name": "down", "way": "up"}]}, "inner/0/name = 'down': it goes up"),
        ({"pair": ["a"]}, "pair = ['a']: no list of 2"),
        ({"pair": ["a", 1]}, "pair/1 = 1: no truth"),
        ({"by_count": {"012": 4}}, "by_count: '012' is no count"),
        ({"table": {"times": []}}, "table/times = []: it is empty"),
        ({"table": {"times": [1.0, 2e9]}}, "table/times/1 = 2000000000.0: no figure"),
        ({"table": {"times": [1.0, True]}}, "table/times/1 = True: no figure"),
        ({"same": {"name": 5, "way": "up"}}, "same/name = 5: no text"),
        ({"extra": 1}, "the top level: 'extra' is not known"),
    ],
)
def test_anything_else_is_refused_with_its_place(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=r"^.*$") as caught:
        made(Whole, {**GOOD, **change})
    assert str(caught.value).startswith(told)
