"""Captions: a log of what happened, one sentence per event, and the score of such a log."""
import collections

from training.world import names

LIMIT = 14  # events in one caption


def counted(thing, count):
    return names.with_article(thing.name) if count == 1 else f"{names.NUMBERS[count]} {thing.plural}"


def events(world):
    """Sentences in the order in which things happen."""
    log, seen = [], set()
    for s in world.scenes:
        place = s.place
        where = names.background_name(place.background)
        if place.background in seen:
            log.append((s.start, f"the {place.mover.name} is back over {where}"))
            continue
        seen.add(place.background)
        text = f"{names.with_article(place.mover.name)} moves {names.DIRECTIONS[place.direction]} over {where}"
        if place.still:
            text += f" with {counted(place.still, place.still_count)}"
        log.append((s.start, text))
    log += [(c.start, f"a {c.colour_name} card shows {c.shows}".replace("a orange", "an orange")) for c in world.cards]
    return [text[0].upper() + text[1:] + "." for _, text in sorted(log, key=lambda e: e[0])]


def caption(world):
    return " ".join(events(world)[:LIMIT])


def picture_caption(world, swapped=False):
    """Of two single things the upper comes first, side by side the left one. swapped: the other order, which is as right; None where there
    are no two such.
    """
    place = world.scenes[0].place
    things = names.with_article(place.mover.name)
    if swapped and not (place.still and place.still_count == 1):
        return None
    if place.still:
        words = [things, counted(place.still, place.still_count)]
        if place.still_count == 1 and swapped != (_band(place.look["still"][0]) < _band(place.look["mover"])):
            words.reverse()
        things = " and ".join(words)
    text = f"{things} on {names.background_name(place.background)}."
    for c in world.cards:
        text += f" {names.with_article(c.colour_name)} card shows {c.shows}.".replace(" a", " A", 1)
    return text[0].upper() + text[1:]


def _band(spot):
    """Reading order of a spot (x, y, half size): quarters of the height from above, and within one from the left."""
    x, y, _ = spot
    return int(y / 28), x


def score(wanted, given):
    """F1 of the events two captions log, as multisets of sentences."""
    a = collections.Counter(t.strip() for t in wanted.split(".") if t.strip())
    b = collections.Counter(t.strip() for t in given.split(".") if t.strip())
    return 2 * sum((a & b).values()) / max(1, sum(a.values()) + sum(b.values()))
