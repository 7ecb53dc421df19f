"""Text passages that stand between stretches of video (mixed modality).

A mixed prompt is one user message whose content parts alternate: video, text, video, text, ..., and
last the question. A passage is a few plain sentences, each a fact about a person or filler, and ends
with a newline, so that tokens never straddle two parts.
"""
import dataclasses
import functools
import random

from training.world import names

PEOPLE = ("Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karin Leo Maria Nils Olga Paul Rosa Simon Tina Viktor "
          "Wanda Yusuf Zoe Otto").split()
CITIES = ("Oslo Paris Rome Lima Cairo Tokyo Vienna Madrid Berlin Dublin Athens Prague Lisbon Warsaw Delhi Quito").split()

_CODE = ["The code of {name} is {value}.", "{name} has the code {value}.", "{name}'s code is {value}.", "Remember: the code of {name} is {value}."]
_KEEPS = ["{name} keeps {value}.", "{name} keeps {value} at home.", "The thing that {name} keeps is {value}.", "At home {name} keeps {value}."]
_LIVES = ["{name} lives in {value}.", "The home of {name} is in {value}.", "{name} has a home in {value}.", "{name} lives in the city of {value}."]
_FILLER = ["The {a} near the {b} was {c} that {d}.", "Nobody saw the {a} before the {d}.", "It was a {c} {d} and the {a} was quiet.",
           "Some say the {a} is {c}, others do not.", "Then the {d} came and the {b} was {c} again.", "There was a {c} {a} beside the {b}.",
           "After a while the {b} became {c}.", "The {d} was {c} and nothing happened near the {b}."]
_WORDS = dict(a="house river street window garden door bridge market forest tower".split(),
              b="lake hill road station field wall gate mill beach school".split(),
              c="quiet cold warm old new small large bright dark empty".split(),
              d="morning evening day night week winter summer autumn".split())


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


def write(rng, frames, lengths):
    """Passages of about `lengths[i]` sentences after the given frames -> ([text], [Fact])."""
    people = rng.sample(PEOPLE, len(PEOPLE))
    texts, facts = [], []
    for frame, length in zip(frames, lengths):
        sentences = [filler(rng) for _ in range(length)]
        for _ in range(rng.choice((0, 1, 1, 2)) if facts or frame != frames[-1] else 1):
            if not people:
                break
            name, draw = people.pop(), rng.random()
            if draw < 0.5:
                value = f"{rng.randint(10, 99)}"
                fact, forms, answer = "text_code", _CODE, value
            elif draw < 0.75:
                value = names.with_article(rng.choice(names.PICTURES))
                fact, forms, answer = "text_keeps", _KEEPS, value
            else:
                value = rng.choice(CITIES)
                fact, forms, answer = "text_lives", _LIVES, f"in {value}"
            sentences.insert(rng.randint(0, len(sentences)), rng.choice(forms).format(name=name, value=value))
            facts.append(Fact(fact, name, answer, frame))
        texts.append(" ".join(sentences) + "\n")
    return texts, facts
