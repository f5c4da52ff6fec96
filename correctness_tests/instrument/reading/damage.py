"""Damage to files: values replaced, keys lost, doubled and renamed, lines and characters moved. For hypothesis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

NASTY: tuple[str, ...] = (
    "null", "true", "false", "0", "-1", "1", "2", "3.0", "0.5", "-0.0", "1e308", "1e999", "-1e-320", "1e-320",
    "9" * 19, "9" * 400, "NaN", "Infinity", "-Infinity", '""', '"x"', '"1"', '"nan"', "[]", "{}", "[1]", '["x"]',
    "[[]]", '{"a": 1}',
    "[" * 60 + "]" * 60, "[" * 2000 + "]" * 2000, '"2026-02-30T10:00:00Z"', '"2026-01-01T00:00:00Z"',
    '"2999-01-01T00:00:00Z"', '"2026-01-01"', '"2026-01-01T00:00:00"', '"lower"', '"higher"', '"same"', '"timing"',
    '"reported"', '"exact"', '"counted"', '"s"', '"ms"', '"tok/s"', '"single_stream"', '"\\ud800"', '"\\u0000"',
    '"a\\nb"', '"../../x"', '"single_stream/ttft_ms"', '"measured"', '"ok"', '"measurement failed"',
)  # fmt: skip
"""Literals of JSON, or nearly; most are TOML too."""

# What stands for a part of a document that is written as it is.
_RAW = "\x02"


class Twice(list):  # type: ignore[type-arg]
    """A table as pairs, so that a key can stand in it twice."""


def places(data: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place below the top of nested data."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield (*here, key)
        yield from places(value, (*here, key))


def written(data: Any) -> str:
    """`data` as JSON, with tables of doubled keys and raw literals."""
    if isinstance(data, Twice):
        return "{" + ", ".join(f"{json.dumps(key)}: {written(value)}" for key, value in data) + "}"
    if isinstance(data, dict):
        return written(Twice(data.items()))
    if isinstance(data, list):
        return "[" + ", ".join(map(written, data)) + "]"
    if isinstance(data, str) and data.startswith(_RAW):
        return data[1:]
    return json.dumps(data)


numbers = st.integers(0, 10**6)
literals = st.sampled_from(NASTY) | st.integers(-9, 10**6).map(str) | st.floats(0, 1e4).map(repr)
steps = st.lists(st.tuples(st.integers(0, 7), numbers, numbers, literals), min_size=1, max_size=3)
"""What is done to a file, one after the other."""


def damaged_json(good: Any, done: list[tuple[int, int, int, str]]) -> str:
    """`good` as JSON text after these steps."""
    data = json.loads(json.dumps(good))
    for what, one, other, literal in done:
        if what == 7:
            return damaged_text(written(data), one, other, literal)
        found = list(places(data))
        if not found:
            break
        *above, last = found[one % len(found)]
        inside = data
        for key in above:
            inside = dict(inside)[key] if isinstance(inside, Twice) else inside[key]
        if isinstance(inside, Twice):
            continue
        _changed(inside, last, what, found[other % len(found)][-1], literal)
    return written(data)


def _changed(inside: Any, last: Any, what: int, name: Any, literal: str) -> None:
    table = isinstance(inside, dict)
    if what in (0, 1, 2):
        inside[last] = _RAW + literal
    elif what == 3:
        del inside[last]
    elif what == 4 and table:
        inside[str(name)] = inside.pop(last)
    elif what == 5 and table:
        # the last of two equal keys would win
        inside[last] = Twice([*inside[last].items()] * 2) if isinstance(inside[last], dict) else inside[last]
    elif what == 6 and not table:
        inside.append(inside[last])


def damaged_text(text: str, one: int, other: int, literal: str) -> str:
    """`text` with characters lost, doubled or put in."""
    at, to = sorted((one % (len(text) + 1), other % (len(text) + 1)))
    match one % 6:
        case 0:
            return text[:at]
        case 1:
            return text[:at] + text[min(to, at + 1 + other % 5) :]
        case 2:
            return text[:at] + literal + text[at:]
        case 3:
            return "\ufeff" + text
        case 4:
            return text[:at] + "\x00\x85\u2028\r"[other % 4] + text[at:]
        case _:
            return text[:to] + text[at:to] + text[to:]


def damaged_lines(good: str, done: list[tuple[int, int, int, str]]) -> str:
    """TOML text after these steps: a line lost, doubled or moved, a value or a key replaced."""
    lines = good.split("\n")
    for what, one, other, literal in done:
        at, to = one % len(lines), other % len(lines)
        key, equals, _ = lines[at].partition(" = ")
        match what:
            case 0 | 1 | 2 if equals:
                lines[at] = f"{key} = {literal.replace('null', 'nan').replace('Infinity', 'inf').replace('NaN', 'nan')}"
            case 3:
                del lines[at]
                lines = lines or [""]
            case 4:
                lines.insert(to, lines[at])
            case 5:
                lines[at], lines[to] = lines[to], lines[at]
            case 6 if equals:
                lines[at] = lines[at].replace(key, lines[to].partition(" = ")[0], 1)
            case 7:
                return damaged_text("\n".join(lines), one, other, literal)
    return "\n".join(lines)
