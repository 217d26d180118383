"""The records in a window are found, and their checksums are checked many at a time."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from shards_on_disk import flipped, packed

from tfmagic.tfrecord import framing


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.one_of(st.just(40), st.integers(0, 3000)), min_size=1, max_size=700),
    seed=st.integers(0, 1 << 30),
)
def test_damaged_records_are_found_among_many_of_any_length(lengths, seed):
    rng = random.Random(seed)
    records = [rng.randbytes(n) for n in lengths]
    window = rng.randbytes(seed % 50) + packed(records)
    borders = np.cumsum([seed % 50, *(len(r) + framing.FRAME for r in records)])
    places, after = borders[:-1], int(borders[-1])
    assert framing.count_intact_headers(window, places, after) == len(records)
    assert framing.find_damaged(window, places, after) == []
    bad = sorted(rng.sample(range(len(records)), min(3, len(records))))
    for number in bad:
        at = int(borders[number + 1]) - 1 - rng.randrange(lengths[number] + 4)
        window = flipped(window, at)
    assert framing.find_damaged(window, places, after) == bad
    window = flipped(window, int(places[bad[-1]]) + 8 + rng.randrange(4))
    headers = [framing.length_at(window, int(place)) for place in places]
    assert framing.count_intact_headers(window, places, after) == headers.index(None)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_every_correct_header_is_found_wherever_it_begins(seed):
    rng = random.Random(seed)
    records = [rng.randbytes(rng.choice([0, 1, rng.randrange(300)])) for _ in range(20)]
    window = bytes(rng.randrange(40)) + packed(records) + rng.randbytes(rng.randrange(40)) + bytes(50)
    limit = rng.choice([len(window), len(window) // 2])

    def is_header(place):
        length = framing.length_at(window, place)
        return length is not None and place + length + framing.FRAME <= limit

    expected = [place for place in range(len(window) - framing.HEADER + 1) if is_header(place)]
    assert framing.find_headers(memoryview(window), limit) == expected
    assert framing.find_headers(window[: framing.HEADER - 1], limit) == []
