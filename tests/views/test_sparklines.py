"""The curve of a task's CPU in the saved form."""

import random
from xml.etree import ElementTree

import pytest

from tfmagic.views.sparklines import CpuSamples, sparkline_html

ROOM = 10_000


@pytest.mark.parametrize("count", [2, 3, 15, 60])
def test_a_curve_is_a_small_image_with_a_point_a_second(count):
    samples = [random.Random(count).randrange(400) for _ in range(count)]
    made = sparkline_html(samples, "#2b9656", ROOM)
    assert 300 < len(made) < 450 + 5 * count
    assert f"its last {count} s: up to {max(samples)} %" in made
    code = made.partition("data:image/svg+xml,")[2].partition('"')[0]
    for mark, sign in (("%3C", "<"), ("%3E", ">"), ("%23", "#"), ("%20", " ")):
        code = code.replace(mark, sign)
    path = ElementTree.fromstring(code)[0].attrib["d"]
    assert path.count(",1") >= count - 2 and path.startswith(f"M{max(13 - count, 0)},")


def test_a_curve_keeps_to_its_room_and_shows_the_end():
    for room in range(0, 900, 7):
        made = sparkline_html([100] * 30 + [0, 250] * 15, "#2b9656", room)
        assert len(made) <= room and (not made or "up to 250 %" in made)
    assert sparkline_html([50], "#2b9656", ROOM) == ""


def test_samples_are_a_second_apart_and_none_where_nothing_is_known():
    kept = CpuSamples()
    for _ in range(3):  # at once
        kept.add({"worker-0": 12.6, "worker-1": None})
    assert kept.of("worker-0") == (13,)
    assert kept.of("worker-1") == kept.of("ps-0") == ()
