"""Questions about a world, with the answers and the times of the evidence.

Each method of `Asker` makes one kind of question, or returns None when this world has nothing to ask
in that way. `SKILLS` says which kinds make up a skill and how often each is asked.
"""
import dataclasses
import random

from training.world import captions, chat, names, passages
from training.world.phrases import say

YES_NO = ["yes", "no"]


@dataclasses.dataclass
class Item:
    skill: str
    kind: str
    question: str
    answer: str
    evidence: list = dataclasses.field(default_factory=list)  # (start frame, stop frame)
    options: list = None
    alone: bool = False  # asked without the video


# skill -> {kind: weight}
SKILLS = {
    "what": dict(what_mover=3, what_still=2, what_behind=1.5),
    "colour": dict(colour_behind=1, colour_shape=1.5, colour_card=1.5),
    "motion": dict(motion_thing=2, motion_place=2, motion_still=0.5),
    "order": dict(first_card=1, last_card=1, first_card_colour=.5, last_card_colour=.5, card_after=1.2, card_before=1.2,
                  first_thing=.8, last_thing=.8, thing_after=1.6, thing_before=2, which_card_first=.8, which_thing_first=1.4),
    "count": dict(count_cards=1.5, count_still=1.5, count_things=.7, count_times=1),
    "presence": dict(is_card=1, is_thing=1.2, is_place=.5),
    "card": dict(card=4.5),
    "group": dict(group_mover=1, group_card=.8, group_thing=.8, group_which=.8),
    "compare": dict(same_background=1),
    "when": dict(when_card=1.6),
    "none": dict(none_card=.6, none_thing=.6, none_place=.6, none_content=.4),
    "text": dict(text_fact=14),
    "binding": dict(same_way=1.2, none_text=1.5),  # two words must be compared; see README, what it cannot do yet
    "chat": dict(talk=.5, no_video=.25),
    "caption": dict(caption=1),
    "image": dict(image_what=1, image_background=.8, image_colour=1, image_background_colour=.6, image_count=1, image_is=1,
                  image_card=1.2, image_motion=.3, image_none=.5),
}
# what a drill asks more often: many visits counted, one fact among many
DRILL = dict(text_fact=24.0, none_text=1.6, count_times=3.0, same_background=2.0, thing_before=3.0, thing_after=2.4, when_card=3.2, same_way=1.6)
KIND_SKILL = {kind: skill for skill, kinds in SKILLS.items() for kind in kinds}
CORE = ["what", "colour", "motion", "order", "count", "presence", "card"]
REST = ["group", "compare", "when", "none", "text", "chat", "image", "caption", "binding"]
VIDEO_SKILLS = CORE + ["group", "compare", "when", "none"]


def _content(rng, card):
    if card.content < len(names.GLYPHS):
        kind = "number" if names.GLYPHS[card.content].isdigit() else "letter"
        return rng.choice((card.shows, f"the {kind} {card.shows}"))
    name = names.PICTURES[card.picture]
    return name if name in names.UNCOUNTED else rng.choice((f"the {name}", f"{names.with_article(name)}"))


class Asker:
    def __init__(self, rng, world, facts=(), whole=True):
        """facts: what the passages say; whole: the video is over (false: asked in the middle of a stream)."""
        self.rng, self.world, self.facts, self.whole = rng, world, facts, whole
        self.scenes, self.cards = world.scenes, world.cards
        self.places, self.visits = [], {}
        for s in self.scenes:
            if s.place.background not in self.visits:
                self.places.append(s.place)
            self.visits.setdefault(s.place.background, []).append(s)
        self.things = {p.mover.name for p in self.places} | {p.still.name for p in self.places if p.still}
        self.things |= {names.PICTURES[c.picture] for c in self.cards if c.picture >= 0}

    def ask(self, kind):
        made = getattr(self, kind)()
        if made is None:
            return None
        worded, answer, *rest = made
        evidence = rest[0] if rest else []
        options = rest[1] if len(rest) > 1 else None
        return Item(KIND_SKILL[kind], kind, worded, answer, evidence, options, kind in ("talk", "no_video"))

    # -- pickers
    def _place(self):
        return self.rng.choice(self.places)

    def _card(self):
        return self.rng.choice(self.cards) if self.cards else None

    def _seen(self, place):
        return [(s.start, s.stop) for s in self.visits[place.background]]

    def _single(self):
        """Scenes whose place is visited only once."""
        return [i for i, s in enumerate(self.scenes) if len(self.visits[s.place.background]) == 1]

    def _absent_thing(self):
        while True:
            name = self.rng.choice(names.PICTURES) if self.rng.random() < 0.75 else (
                f"{self.rng.choice(names.COLOUR_NAMES)} {self.rng.choice(names.SHAPES)}")
            if name not in self.things:
                return name

    def _absent_colour(self):
        free = [c for i, c in enumerate(names.COLOUR_NAMES) if all(k.colour != i for k in self.cards)]
        return self.rng.choice(free) if free else None

    def _absent_place(self):
        while True:
            background = self.rng.randrange(names.BACKGROUNDS)
            if background not in self.visits:
                return names.background_name(background)

    def _say(self, kind, **words):
        return say(self.rng, kind, **words)

    # -- what
    def what_mover(self):
        p = self._place()
        return self._say("what_mover", place=names.background_name(p.background)), names.with_article(p.mover.name), self._seen(p)

    def what_still(self):
        p = self._place()
        if not p.still and self.rng.random() < 0.7:
            return None
        answer = captions.counted(p.still, p.still_count) if p.still else "nothing"
        return self._say("what_still", place=names.background_name(p.background)), answer, self._seen(p)

    def what_behind(self):
        p = self._place()
        return self._say("what_behind", thing=p.mover.name), names.background_name(p.background), self._seen(p)

    # -- colour
    def colour_behind(self):
        p = self._place()
        return (self._say("colour_behind", thing=p.mover.name), names.background_name(p.background).split()[0], self._seen(p),
                names.BACKGROUND_NAMES)

    def colour_shape(self):
        found = [(p, t) for p in self.places for t in (p.mover, p.still) if t and t.is_shape]
        if not found:
            return None
        p, t = self.rng.choice(found)
        return (self._say("colour_shape", shape=names.SHAPES[t.kind], place=names.background_name(p.background)),
                names.COLOUR_NAMES[t.colour], self._seen(p), names.COLOUR_NAMES)

    def colour_card(self):
        c = self._card()
        return c and (self._say("colour_card", content=_content(self.rng, c)), c.colour_name, [(c.start, c.stop)], names.COLOUR_NAMES)

    # -- motion
    def motion_thing(self):
        p = self._place()
        return self._say("motion_thing", thing=p.mover.name), names.DIRECTIONS[p.direction], self._seen(p), names.DIRECTIONS

    def motion_place(self):
        p = self._place()
        return (self._say("motion_place", place=names.background_name(p.background)), names.DIRECTIONS[p.direction], self._seen(p),
                names.DIRECTIONS)

    def motion_still(self):
        found = [p for p in self.places if p.still and p.still_count == 1]
        if not found:
            return None
        p = self.rng.choice(found)
        return self._say("motion_thing", thing=p.still.name), "It does not move.", self._seen(p)

    # -- order
    def _end_card(self, kind, i, colour):
        if not self.cards:
            return None
        c = self.cards[i]
        return self._say(kind), c.colour_name if colour else c.shows, [(c.start, c.stop)]

    def first_card(self):
        return self._end_card("first_card", 0, False)

    def last_card(self):
        return self._end_card("last_card", -1, False)

    def first_card_colour(self):
        return self._end_card("first_card_colour", 0, True)

    def last_card_colour(self):
        return self._end_card("last_card_colour", -1, True)

    def _next_card(self, kind, step, missing):
        if not self.cards:
            return None
        i = self.rng.randrange(len(self.cards))
        if not 0 <= i + step < len(self.cards):
            if self.rng.random() < 0.6:
                return None
            return self._say(kind, colour=self.cards[i].colour_name), missing, [(self.cards[i].start, self.cards[i].stop)]
        other = self.cards[i + step]
        return self._say(kind, colour=self.cards[i].colour_name), f"the {other.colour_name} card", [(other.start, other.stop)]

    def card_after(self):
        return self._next_card("card_after", 1, "There is no card after it.")

    def card_before(self):
        return self._next_card("card_before", -1, "There is no card before it.")

    def _end_thing(self, kind, i):
        s = self.scenes[i]
        return self._say(kind), names.with_article(s.place.mover.name), [(s.start, s.stop)]

    def first_thing(self):
        return self._end_thing("first_thing", 0)

    def last_thing(self):
        return self._end_thing("last_thing", -1)

    def _next_thing(self, kind, step):
        found = [i for i in self._single() if 0 <= i + step < len(self.scenes)]
        if not found:
            return None
        i = self.rng.choice(found)
        other = self.scenes[i + step]
        return (self._say(kind, thing=self.scenes[i].place.mover.name), names.with_article(other.place.mover.name),
                [(other.start, other.stop)])

    def thing_after(self):
        return self._next_thing("thing_after", 1)

    def thing_before(self):
        return self._next_thing("thing_before", -1)

    def which_card_first(self):
        if len(self.cards) < 2:
            return None
        two = self.rng.sample(self.cards, 2)
        first = min(two, key=lambda c: c.start)
        words = [f"the {c.colour_name} card" for c in two]
        return (self._say("which_card_first", a=two[0].colour_name, b=two[1].colour_name), f"the {first.colour_name} card",
                [(c.start, c.stop) for c in two], words)

    def which_thing_first(self):
        if len(self.places) < 2:
            return None
        two = self.rng.sample(range(len(self.places)), 2)
        a, b = (self.places[i].mover.name for i in two)
        first = self.places[min(two)]
        return self._say("which_thing_first", a=a, b=b), f"the {first.mover.name}", self._seen(first), [f"the {a}", f"the {b}"]

    # -- count
    def count_cards(self):
        if len(self.cards) > 5:
            return None
        return self._say("count_cards"), str(len(self.cards)), [(c.start, c.stop) for c in self.cards], [str(i) for i in range(6)]

    def count_still(self):
        found = [p for p in self.places if p.still]
        if not found:
            return None
        p = self.rng.choice(found)
        return (self._say("count_still", things=p.still.plural, place=names.background_name(p.background)), str(p.still_count),
                self._seen(p), ["1", "2", "3"])

    def count_things(self):
        found = [p for p in self.places if p.still]
        if not found or self.rng.random() < 0.2:
            while True:
                i = self.rng.randrange(len(names.PICTURES))
                if names.PICTURES[i] not in self.things and names.PICTURES[i] not in names.UNCOUNTED:
                    return self._say("count_things", things=names.PLURALS[i]), "0", [], ["0", "1", "2", "3"]
        p = self.rng.choice(found)
        return self._say("count_things", things=p.still.plural), str(p.still_count), self._seen(p), ["0", "1", "2", "3"]

    def count_times(self):
        p = self._place()
        often = [q for q in self.places if len(self.visits[q.background]) > 1]
        if often and self.rng.random() < 0.6:
            p = self.rng.choice(often)
        times = len(self.visits[p.background])
        return (times <= 3 or None) and (self._say("count_times", thing=p.mover.name), str(times), self._seen(p), ["1", "2", "3"])

    # -- presence
    def is_card(self):
        absent = self._absent_colour()
        if self.cards and (absent is None or self.rng.random() < 0.5):
            c = self._card()
            return self._say("is_card", colour=c.colour_name), "yes", [(c.start, c.stop)], YES_NO
        return self._say("is_card", colour=absent), "no", [], YES_NO

    def is_thing(self):
        if self.rng.random() < 0.5:
            p = self._place()
            t = self.rng.choice([p.mover] + [p.still] * bool(p.still))
            return self._say("is_thing", a_thing=names.with_article(t.name)), "yes", self._seen(p), YES_NO
        return self._say("is_thing", a_thing=names.with_article(self._absent_thing())), "no", [], YES_NO

    def is_place(self):
        if self.rng.random() < 0.5:
            p = self._place()
            return self._say("is_place", place=names.background_name(p.background)), "yes", self._seen(p), YES_NO
        return self._say("is_place", place=self._absent_place()), "no", [], YES_NO

    # -- cards
    def card(self, card=None):
        c = card or self._card()
        return c and (self._say("card", colour=c.colour_name), c.shows, [(c.start, c.stop)])

    # -- groups
    def group_mover(self):
        p = self._place()
        return self._say("group_mover", place=names.background_name(p.background)), p.mover.group, self._seen(p), names.GROUPS + ["shape"]

    def group_card(self):
        c = self._card()
        return c and (self._say("group_card", colour=c.colour_name), c.group, [(c.start, c.stop)], names.GROUPS + ["number", "letter"])

    def group_thing(self):
        p = self._place()
        return self._say("group_thing", thing=p.mover.name), p.mover.group, self._seen(p), names.GROUPS + ["shape"]

    def group_which(self):
        groups = [p.mover.group for p in self.places]
        found = [p for p in self.places if groups.count(p.mover.group) == 1]
        if not found:
            return None
        p = self.rng.choice(found)
        return self._say("group_which", group=p.mover.group), names.with_article(p.mover.name), self._seen(p)

    # -- compare
    def same_way(self):
        pairs = [(a, b) for a in self.places for b in self.places if a is not b]
        want = self.rng.random() < 0.5
        pairs = [(a, b) for a, b in pairs if (a.direction == b.direction) == want]
        if not pairs:
            return None
        a, b = self.rng.choice(pairs)
        # the two directions first: the verdict follows from them
        answer = f"{names.DIRECTIONS[a.direction]} and {names.DIRECTIONS[b.direction]}: {'yes' if want else 'no'}"
        return self._say("same_way", a=a.mover.name, b=b.mover.name), answer, self._seen(a) + self._seen(b)

    def same_background(self):
        if len(self.scenes) < 2:
            return None
        first, last = self.scenes[0], self.scenes[-1]
        same = first.place.background == last.place.background
        return self._say("same_background"), "yes" if same else "no", [(first.start, first.stop), (last.start, last.stop)], YES_NO

    # -- when
    def when_card(self):
        c = self._card()
        if not c or not self.whole:
            return None
        at = (c.start + c.stop) / 2 / self.world.frames
        if min(abs(at - 1 / 3), abs(at - 2 / 3)) < 0.04:
            return None
        options = ["early", "in the middle", "late"]
        return self._say("when_card", colour=c.colour_name), options[int(min(2, at * 3))], [(c.start, c.stop)], options

    # -- nothing there
    def none_card(self):
        colour = self._absent_colour()
        return colour and (self._say("none_card", colour=colour), f"There is no {colour} card.")

    def none_thing(self):
        name = self._absent_thing()
        return self._say("none_thing", thing=name), f"There is no {name}."

    def none_place(self):
        place = self._absent_place()
        return self._say("none_place", place=place), f"There are no {place}."

    def none_content(self):
        shown = {c.content for c in self.cards}
        free = [i for i in range(len(names.GLYPHS)) if i not in shown]
        glyph = names.GLYPHS[self.rng.choice(free)]
        return self._say("none_content", content=glyph), f"There is no card with {glyph}."

    # -- passages
    def text_fact(self):
        if not self.facts:
            return None
        f = self.rng.choice(self.facts)
        return self._say(f.kind, name=f.name), f.answer, [(f.frame, f.frame)]

    def none_text(self):
        if not self.facts:
            return None
        free = [p for p in passages.PEOPLE if all(f.name != p for f in self.facts)]
        if not free:
            return None
        name = self.rng.choice(free)
        return self._say(self.rng.choice(("text_code", "text_keeps", "text_lives")), name=name), f"There is nothing about {name}."

    # -- talk
    def talk(self):
        return chat.talk(self.rng)

    def no_video(self):
        made = self.ask(self.rng.choice(("what_mover", "motion_thing", "first_card", "count_cards", "card", "caption", "is_thing",
                                         "when_card", "last_thing")))
        return made and (made.question, chat.NO_VIDEO)

    # -- the whole
    def caption(self):
        return self._say("caption"), captions.caption(self.world), [(0, self.world.frames)]

    # -- single pictures
    def image_what(self):
        return self._say("image_what"), captions.picture_caption(self.world)

    def image_background(self):
        return self._say("image_background"), names.background_name(self._place().background)

    def image_background_colour(self):
        return self._say("image_background_colour"), names.background_name(self._place().background).split()[0]

    def image_colour(self):
        p = self._place()
        found = [t for t in (p.mover, p.still) if t and t.is_shape]
        if not found:
            return None
        t = self.rng.choice(found)
        return self._say("image_colour", shape=names.SHAPES[t.kind]), names.COLOUR_NAMES[t.colour]

    def image_count(self):
        return self.count_things()

    def image_is(self):
        return self.rng.choice((self.is_thing, self.is_card))()

    def image_card(self):
        return self.rng.choice((self.card, self.colour_card))()

    def image_motion(self):
        return self._say("motion_thing", thing=self._place().mover.name), "It is a still picture."

    def image_none(self):
        return self.rng.choice((self.none_card, self.none_content))()


_SAME_WORDS = ["Are {a} and {b} the same way?", "Is {a} the same way as {b}?", "Are {a} and {b} the same direction?", "Is {a} the same as {b}?",
               "One moves {a}, the other {b}. Is that the same way?", "{a} and {b}: the same?"]


def same_words(rng):
    """What follows from two directions, without a video: practice for the verdict of same_way, and in its words."""
    a, b = rng.choice(names.DIRECTIONS), rng.choice(names.DIRECTIONS)
    if rng.random() < 0.4:
        b = a
    return Item("binding", "same_words", rng.choice(_SAME_WORDS).format(a=a, b=b), f"{a} and {b}: {'yes' if a == b else 'no'}", alone=True)


def ask_many(rng, world, count, skills, facts=(), whole=True, drill=False, most=None):
    """`count` different questions, drawn by weight from the kinds of the given skills; drill: with the weights of DRILL;
    most: at most this many of a kind."""
    asker = Asker(rng, world, facts, whole)
    kinds = [k for s in skills for k in SKILLS[s]]
    weights = [(drill and DRILL.get(k)) or SKILLS[s][k] for s in skills for k in SKILLS[s]]
    items, seen = [], set()
    asked = dict.fromkeys(kinds, 0)
    for kind in rng.choices(kinds, weights, k=3 * count):
        if asked[kind] == most:
            continue
        item = asker.ask(kind)
        # two wordings of one question to the same answer teach nothing new
        key = item and (kind, item.answer, tuple(item.evidence))
        if item is None or key in seen:
            continue
        seen.add(key)
        asked[kind] += 1
        items.append(item)
        if len(items) == count:
            break
    return items


def seeded(seed):
    return random.Random(f"questions/{seed}")
