"""Text passages that stand between stretches of video (mixed modality).

A mixed prompt is one user message whose content parts alternate: video, text, video, text, ..., and
last the question. A passage is a few plain sentences, each a fact about a person or filler, and ends
with a newline, so that tokens never straddle two parts.
"""
import dataclasses
import functools
import random

from training.world import names

PEOPLE = "Clara Emma Felix Hugo Ida Jonas Karin Leo Maria Nils Olga Paul Wanda Yusuf Zoe".split()

# a name never opens a sentence, so that it is the same token everywhere
_FORMS = {
    "text_code": ["The code of {name} is {value}.", "Remember: the code of {name} is {value}.", "We heard that {name} has the code {value}.",
                  "The number that belongs to {name} is {value}."],
    "text_keeps": ["At home {name} keeps {value}.", "The thing that {name} keeps is {value}.", "We heard that {name} keeps {value}.",
                   "People say that {name} keeps {value}."],
    "text_lives": ["By the way, {name} lives in a {value} house.", "The house of {name} is {value}.", "We heard that {name} lives in a {value} house.",
                   "People say that {name} has a {value} house."],
}
_FILLER = ["The {a} near the {b} was {c} that {d}.", "Nobody saw the {a} before the {d}.", "It was a {c} {d} and the {a} was quiet.",
           "Some say the {a} is {c}, others do not.", "Then the {d} came and the {b} was {c} again.", "There was a {c} {a} beside the {b}.",
           "After a while the {b} became {c}.", "The {d} was {c} and nothing happened near the {b}."]
_WORDS = dict(a="house river street window garden door bridge market forest tower".split(),
              b="lake hill road station field wall gate mill beach school".split(),
              c="quiet cold warm old new small large bright dark empty".split(),
              d="morning evening day night week winter summer autumn".split())

_OTHERS = "man woman boy girl guest painter".split()  # who have no name


@dataclasses.dataclass(frozen=True)
class Fact:
    kind: str   # text_code, text_keeps or text_lives
    name: str
    answer: str
    frame: int  # of the video that stands before it


@functools.cache
def _pool():
    """Some hundred filler sentences: few enough that their tokens are remembered."""
    rng = random.Random("filler")
    texts = (rng.choice(_FILLER).format(**{k: rng.choice(v) for k, v in _WORDS.items()}) for _ in range(800))
    return [t.replace(" a old", " an old").replace(" a empty", " an empty") for t in texts]


def filler(rng):
    return rng.choice(_pool())


def _value(rng, kind):
    """What a fact says, and how it is answered."""
    if kind == "text_code":
        value = f"{rng.randint(10, 99)}"
        return value, value
    if kind == "text_keeps":
        value = names.with_article(rng.choice(names.PICTURES))
        return value, value
    value = rng.choice(names.COLOUR_NAMES)
    return value, f"in {names.with_article(value)} house"


def write(rng, frames, lengths, needles=False, most=None):
    """Passages of about `lengths[i]` filler sentences after the given frames -> ([text], [Fact]).

    needles: one fact of each kind in all, somewhere; else one to three in every passage. most: at most this many facts in all.
    """
    if needles:
        return _needles(rng, frames, lengths)
    people = rng.sample(PEOPLE, rng.randint(5, len(PEOPLE) - 2))  # somebody is never spoken of
    open_facts = rng.sample([(n, k) for n in people for k in _FORMS], len(people) * len(_FORMS))
    texts, facts = [], []
    each = [rng.choice((1, 1, 2, 3)) for _ in frames]
    if most is not None:
        each = [most // len(frames)] * len(frames)
    for frame, length, count in zip(frames, lengths, each):
        sentences = [filler(rng) for _ in range(length)]
        for _ in range(count):
            if not open_facts:
                break
            name, kind = open_facts.pop()
            value, answer = _value(rng, kind)
            text = rng.choice(_FORMS[kind]).format(name=name, value=value).replace(" a orange", " an orange")
            sentences.insert(rng.randint(0, len(sentences)), text)
            facts.append(Fact(kind, name, answer, frame))
        texts.append(" ".join(sentences) + "\n")
    return texts, facts


def crowd(rng, frames, lengths, count, twins):
    """Passages of about `lengths[i]` filler sentences, `count` facts and `twins` sentences in the words of facts, about nobody who has a name,
    all mixed -> ([text], [Fact]). The more there are, the harder it is to find one."""
    pairs = [(n, k) for n in PEOPLE for k in _FORMS]
    if count > len(pairs):
        raise ValueError(f"{count} facts; {len(PEOPLE)} people have {len(pairs)}")
    sentences = [[filler(rng) for _ in range(length)] for length in lengths]
    facts, added = [], [[] for _ in frames]
    for name, kind in rng.sample(pairs, count) + [(None, rng.choice(list(_FORMS))) for _ in range(twins)]:
        i = rng.randrange(len(frames))
        value, answer = _value(rng, kind)
        who = name or f"the {rng.choice(_OTHERS)} near the {rng.choice(_WORDS['b'])}"
        added[i].append(rng.choice(_FORMS[kind]).format(name=who, value=value).replace(" a orange", " an orange"))
        if name:
            facts.append(Fact(kind, name, answer, frames[i]))
    for passage, more in zip(sentences, added):
        for text in more:
            passage.insert(rng.randint(0, len(passage)), text)
    return [" ".join(s or [filler(rng)]) + "\n" for s in sentences], facts


def _needles(rng, frames, lengths):
    sentences = [[filler(rng) for _ in range(length)] for length in lengths]
    facts = []
    for kind, name in zip(_FORMS, rng.sample(PEOPLE, len(_FORMS))):
        i = rng.randrange(len(frames))
        value, answer = _value(rng, kind)
        text = rng.choice(_FORMS[kind]).format(name=name, value=value).replace(" a orange", " an orange")
        sentences[i].insert(rng.randint(0, len(sentences[i])), text)
        facts.append(Fact(kind, name, answer, frames[i]))
    return [" ".join(s or [filler(rng)]) + "\n" for s in sentences], facts
