"""Generated input, the same on every machine (fixed seed). Rows are tuples, and the lists are in memory before a clock
starts.

``w1``: (key, value), 10,000 keys "user-0000" and up, uniform or Zipf; the value depends on the key alone, so that the
sum of all running sums is the same in any order of the keys. ``bids``: Nexmark's bids out of 46 bids, 3 auctions and
1 person per 50 events, 10,000 events per second of event time; ``listings``: its persons and auctions. ``readings``:
(time in ms, number), one per ms, up to 2 s out of order.
"""

from __future__ import annotations

import random
from itertools import accumulate

SEED = 20240101
START_MS = 1_704_067_200_000
KEYS = 10_000
CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
URLS = tuple(f"https://www.nexmark.com/item.htm?query=1&id={number}" for number in range(1000))

Pair = tuple[str, int]
Bid = tuple[int, int, int, str, str, int, str]
Reading = tuple[int, int]
Listing = tuple[str, int, int, str, int]
PERSON, AUCTION = "person", "auction"
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")


def w1(n: int, *, zipf: bool) -> list[Pair]:
    """``n`` pairs; each key is a separate string, as if it had been read from a file."""
    rng = random.Random(SEED)
    if zipf:
        order = rng.sample(range(KEYS), KEYS)
        numbers = rng.choices(order, cum_weights=list(accumulate(1 / rank for rank in range(1, KEYS + 1))), k=n)
    else:
        numbers = rng.choices(range(KEYS), k=n)
    return [(f"user-{number:04d}", 1 + number * 7919 % 100) for number in numbers]


def fresh(pairs: list[Pair]) -> list[Pair]:
    """The same pairs with new strings, whose hashes are not known yet: as records are that have just arrived."""
    return [(key[:5] + key[5:], value) for key, value in pairs]


def bids(n: int) -> list[Bid]:
    """The bids among ``n`` events: auction, bidder, price, channel, url, time in ms, padding."""
    rng = random.Random(SEED)
    draw, padding = rng.random, "x" * 20
    rows: list[Bid] = []
    for event in range(n):
        if event % 50 < 4:
            continue
        auctions, persons = event // 50 * 3 + 2, event // 50
        hot = auctions // 100 * 100
        auction = 1000 + (hot if draw() < 0.5 else max(auctions - int(draw() * 100), 0))
        seen = persons // 100 * 100 + 1
        bidder = 1000 + (seen if draw() < 0.75 else max(persons - int(draw() * 1000), 0))
        price = round(10 ** (draw() * 6) * 100)
        row = (auction, bidder, price, CHANNELS[int(draw() * 4)], URLS[int(draw() * 1000)])
        rows.append((*row, START_MS + event // 10, padding))
    return rows


def listings(n: int) -> list[Listing]:
    """``n`` persons and auctions, in the order of time: the kind, an id, the id of the person who sells, a state (of
    persons) or a category (of auctions), and the time in ms.
    """
    rng = random.Random(SEED)
    draw = rng.random
    rows: list[Listing] = []
    for number in range(n):
        person, place = divmod(number, 4)
        time = START_MS + (person * 50 + place) // 10
        if place == 0:
            rows.append((PERSON, 1000 + person, 1000 + person, STATES[int(draw() * 6)], time))
            continue
        seller = person // 100 * 100 if draw() < 0.75 else max(person - int(draw() * 1000), 0)
        rows.append((AUCTION, 1000 + person * 3 + place - 1, 1000 + seller, str(10 + int(draw() * 5)), time))
    return rows


def readings(n: int) -> list[Reading]:
    """``n`` pairs of time and number."""
    rng = random.Random(SEED)
    return [(START_MS + max(number - int(rng.random() * 2000), 0), number) for number in range(n)]


def w2(n: int) -> list[tuple[str, int, int]]:
    """``n`` rows of key, time and number: 1,000 keys, one row per ms, up to 2 s out of order."""
    rng = random.Random(SEED)
    keys = [f"user-{number:04d}" for number in range(1000)]
    return [(rng.choice(keys), START_MS + number - int(rng.random() * 2000), number % 1000) for number in range(n)]
