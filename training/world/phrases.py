"""How questions are worded. `[a|b|]` is a choice; every kind has at least ten wordings.

{place} "blue stripes" · {thing} "dog", "red circle" · {things} plural · {shape} "circle" · {colour} of a card ·
{content} "the letter K", "a lemon" · {group} "animal" · {a}, {b} two things · {name} a person in a passage.
"""
import functools
import re

_CHOICE = re.compile(r"\[([^\[\]]*)\]")

PHRASES = {
    "what_mover": [
        "What [moves|is moving|travels|goes|drifts|passes|walks|flies] [over|across] the {place}?",
        "[Which|What] [thing|object] [moves|is moving|is in motion] [over|across] the {place}?",
        "What do you see moving [over|across|on] the {place}?", "[Name|Tell me] [the thing that moves|what moves] over the {place}.",
        "What is the moving [thing|object] on the {place}?", "What crosses the {place}?", "What [is|can be] seen moving over the {place}?"],
    "what_still": [
        "What [stands|sits|stays|rests] still on the {place}?", "What [is standing|is resting|stays in place] on the {place}?",
        "What does not move on the {place}?", "[Which|What] [thing|object] [stays|stands] still on the {place}?",
        "Besides the moving thing, what is on the {place}?", "What [else|other thing] is on the {place}?"],
    "what_behind": [
        "What is behind the {thing}?", "What [background|pattern] is behind the {thing}?", "What does the {thing} move [over|across|on]?",
        "[Over|Across|On] what does the {thing} move?", "What is the background of the {thing}?", "Where [is|do you see] the {thing}?",
        "What is under the {thing}?", "[Which|What] background does the {thing} have?"],
    "colour_behind": [
        "What [colour|color] is the background behind the {thing}?", "What [colour|color] is behind the {thing}?",
        "[Which|What] [colour|color] is the background of the {thing}?", "The {thing} moves over which [colour|color]?",
        "What is the [colour|color] of the background behind the {thing}?", "Behind the {thing}, what [colour|color] is the background?"],
    "colour_shape": [
        "What [colour|color] is the {shape} on the {place}?", "[Which|What] [colour|color] does the {shape} [on|over] the {place} have?",
        "What is the [colour|color] of the {shape} on the {place}?", "The {shape} on the {place} is [which|what] [colour|color]?",
        "On the {place} there is a {shape}. What [colour|color] is it?"],
    "colour_card": [
        "What [colour|color] is the card with {content}?", "[Which|What] [colour|color] is the card that shows {content}?",
        "What is the [colour|color] of the card with {content} on it?", "{content} is on a card of [which|what] [colour|color]?",
        "On what [colour|color] card is {content}?", "[Which|What] card [shows|has|carries] {content}?"],
    "motion_thing": [
        "[Which|What] way does the {thing} [move|go|travel|head]?", "In [which|what] direction does the {thing} [move|go|travel]?",
        "[Which|What] way is the {thing} [moving|going|heading]?", "Where is the {thing} [moving|going|heading] to?",
        "What direction does the {thing} [move|go] in?", "How does the {thing} move?", "Tell me the direction of the {thing}."],
    "motion_place": [
        "[Which|What] way does the [thing|object] [on|over] the {place} [move|go]?", "In [which|what] direction does [it|something] move over the {place}?",
        "What direction is the [motion|movement] [on|over] the {place}?", "[Which|What] way does it [move|go] over the {place}?",
        "Where does the thing on the {place} [move|go] to?", "How does the [thing|object] on the {place} move?"],
    "first_card": [
        "What is on the first card?", "What does the first card show?", "What [can be seen|do you see|is shown|is written] on the first card?",
        "[Which|What] [thing|sign|symbol] is on the first card?", "Tell me what the first card shows.", "The first card shows what?",
        "What was on the [very first|earliest] card?", "Read the first card."],
    "last_card": [
        "What is on the [last|final] card?", "What does the [last|final] card show?", "What [can be seen|do you see|is shown|is written] on the last card?",
        "[Which|What] [thing|sign|symbol] is on the last card?", "Tell me what the last card shows.", "The last card shows what?",
        "What was on the [very last|latest] card?", "Read the last card."],
    "first_card_colour": [
        "What [colour|color] is the first card?", "[Which|What] [colour|color] does the first card have?", "What is the [colour|color] of the first card?",
        "The first card is [which|what] [colour|color]?", "[Which|What] card [comes|appears|is shown] first?", "Which card is the first one?"],
    "last_card_colour": [
        "What [colour|color] is the [last|final] card?", "[Which|What] [colour|color] does the last card have?", "What is the [colour|color] of the last card?",
        "The last card is [which|what] [colour|color]?", "[Which|What] card [comes|appears|is shown] last?", "Which card is the last one?"],
    "card_after": [
        "[Which|What] card [comes|appears|is shown|follows] [right |]after the {colour} card?", "What [colour|color] is the [next card|card] after the {colour} card?",
        "After the {colour} card, which card [comes|appears|is next]?", "[Which|What] card follows the {colour} card?", "What is the next card after the {colour} one?"],
    "card_before": [
        "[Which|What] card [comes|appears|is shown] [right |just |]before the {colour} card?", "What [colour|color] is the card [right |]before the {colour} card?",
        "Before the {colour} card, which card [comes|appears|was there]?", "[Which|What] card precedes the {colour} card?", "What was the card before the {colour} one?"],
    "first_thing": [
        "What [moves|is moving] first?", "[Which|What] [thing|object] moves first?", "What is the first [thing|object] that moves?",
        "What [moves|is moving] at the [beginning|start] of the video?", "What do you see moving first?", "[What|Which thing] does the video [start|begin] with?",
        "Tell me the first moving thing."],
    "last_thing": [
        "What [moves|is moving] last?", "[Which|What] [thing|object] moves last?", "What is the last [thing|object] that moves?",
        "What [moves|is moving] at the end of the video?", "What do you see moving last?", "[What|Which thing] does the video end with?",
        "Tell me the last moving thing."],
    "thing_after": [
        "What [moves|comes|is moving] [right |]after the {thing}?", "After the {thing}, what [moves|comes|is moving] [next|]?", "[Which|What] thing [moves|comes] [right |]after the {thing}?",
        "What follows the {thing}?", "What is the next moving thing after the {thing}?", "When the {thing} is gone, what moves?"],
    "thing_before": [
        "What [moves|comes|is moving] [right |just |]before the {thing}?", "Before the {thing}, what [moves|comes|was moving]?", "[Which|What] thing [moves|comes] [right |]before the {thing}?",
        "What precedes the {thing}?", "What was the moving thing before the {thing}?", "Until the {thing} comes, what moves?"],
    "which_card_first": [
        "Which [comes|appears|is shown] first, the {a} card or the {b} card?", "Which card [comes|appears|is shown] [first|earlier], {a} or {b}?",
        "Is the {a} card or the {b} card [shown |]first?", "What [comes|is] earlier, the {a} card or the {b} card?", "{a} card or {b} card: which is first?"],
    "which_thing_first": [
        "Which [comes|appears|moves|is seen] first, the {a} or the {b}?", "What [comes|appears|moves] [first|earlier], the {a} or the {b}?",
        "Is the {a} or the {b} [seen |]first?", "Which of the two comes first, {a} or {b}?", "{a} or {b}: which is first?"],
    "count_cards": [
        "How many cards [are there|appear|are shown|are seen|come up|do you see|did you see|can you count]?", "How many cards [appear|are there|are shown] in the video?",
        "Count the cards.", "What is the number of cards?", "Tell me how many cards [there are|appear]."],
    "count_still": [
        "How many {things} [are there|are|stand|do you see|can you count] on the {place}?", "How many {things} stand still on the {place}?",
        "On the {place}, how many {things} are there?", "Count the {things} on the {place}.", "Tell me how many {things} are on the {place}.", "What is the number of {things} on the {place}?"],
    "count_things": [
        "How many {things} [are there|are shown|do you see|did you see|can you count|are seen]?", "How many {things} are [in the video|there in the video]?",
        "Count the {things}.", "What is the number of {things}?", "Tell me how many {things} there are."],
    "count_times": [
        "How many times [does the {thing} appear|is the {thing} seen|does the {thing} come|do you see the {thing}]?", "How often [does the {thing} appear|is the {thing} seen|do you see the {thing}]?",
        "In how many scenes is the {thing}?", "Count how often the {thing} [appears|comes].", "The {thing} [appears|is seen] how many times?"],
    "is_card": [
        "Is there a {colour} card?", "Does a {colour} card [appear|come up|show up]?", "Do you see a {colour} card?", "Was there a {colour} card?",
        "Can [you see a {colour} card|a {colour} card be seen]?", "Is a {colour} card shown?", "Did a {colour} card appear?", "Is any card {colour}?"],
    "is_thing": [
        "Is there {a_thing}?", "Is there {a_thing} in the video?", "Does {a_thing} [appear|show up]?", "Do you see {a_thing}?", "Was there {a_thing}?",
        "Can you see {a_thing}?", "Did [you see |]{a_thing} [appear|show up]?", "Is {a_thing} shown?", "Does the video show {a_thing}?"],
    "is_place": [
        "Are there [any |]{place}?", "Do {place} appear?", "Do you see [any |]{place}?", "Is the background ever {place}?", "Were there {place}?",
        "Is there a background of {place}?", "Can you see {place}?", "Does the video show {place}?", "Are {place} shown?"],
    "card": [
        "What is on the {colour} card?", "What does the {colour} card [show|say|have on it]?", "What [can be seen|do you see|is shown|is written|is drawn] on the {colour} card?",
        "[Which|What] [thing|sign|symbol] is on the {colour} card?", "[Tell me|Say] what the {colour} card shows.", "The {colour} card shows what?",
        "What was on the {colour} card?", "Read the {colour} card.", "There is a {colour} card. What is on it?"],
    "group_mover": [
        "What kind of thing [moves|is moving|goes] [over|across] the {place}?", "To which group does the [moving thing|thing that moves] on the {place} belong?",
        "[Which|What] group is the [moving thing|thing] on the {place} in?", "What [type|sort|category] of thing moves [over|across] the {place}?",
        "Is it an animal, a food, a vehicle or something else that moves over the {place}?"],
    "group_card": [
        "What kind of thing is on the {colour} card?", "[Which|What] group is the thing on the {colour} card in?", "What [type|sort|category] of thing is on the {colour} card?",
        "To which group does the thing on the {colour} card belong?", "What kind of thing does the {colour} card show?", "The {colour} card shows what kind of thing?", "What kind of thing do you see on the {colour} card?"],
    "group_thing": [
        "What kind of thing is the {thing}?", "[Which|What] group [is the {thing} in|does the {thing} belong to]?", "What [type|sort|category] of thing is the {thing}?",
        "To which group does the {thing} belong?", "Is the {thing} an animal, a food, a vehicle or something else?"],
    "group_which": [
        "Which {group} [moves|is moving|is seen moving|goes by]?", "What {group} [moves|is moving] in the video?", "[Name|Tell me] the {group} that moves.",
        "Which moving thing is [from the group {group}|of the kind {group}]?", "Of the moving things, which is [of the kind {group}|from the group {group}]?"],
    "same_way": [
        "Do the {a} and the {b} move [the same way|in the same direction]?", "Does the {a} move [the same way as|in the same direction as|like] the {b}?",
        "Is the direction of the {a} the same as that of the {b}?", "Are the {a} and the {b} [going|moving] [the same way|in the same direction]?",
        "[Compare|Look at] the {a} and the {b}: [same direction|same way]?"],
    "same_background": [
        "Is the background [the same|equal] at the [beginning|start] and at the end?", "Does the video end [where it began|where it started|with the background it started with]?",
        "Is the [last|final] background the same as the first [one|]?", "Are the first and the last background the same?",
        "[Compare|Look at] the beginning and the end: [is it the same background|same background]?", "Does the first [background|scene] come back at the end?"],
    "when_card": [
        "When [does the {colour} card appear|is the {colour} card shown|do you see the {colour} card|was the {colour} card there]?",
        "In [which|what] part of the video [is|do you see] the {colour} card?", "At what point [does the {colour} card appear|is the {colour} card shown]?",
        "Is the {colour} card early, in the middle or late?", "How far into the video is the {colour} card?"],
    "caption": [
        "Describe the video.", "What happens in the video?", "Tell me what happens[ in the video|].", "Give me a [log|summary|report] of the video.",
        "Describe what [you see|happens].", "Summarize the video.", "Write [down |]what happens.", "List what happens in the video.", "What do you see in the video?",
        "What is going on?", "Caption the video."],
    "image_what": [
        "What is in the [picture|image]?", "What do you see?", "What does the [picture|image] show?", "Describe the [picture|image].", "What [can you see|do you see] in the [picture|image]?",
        "What is this?", "Tell me what is in the [picture|image]."],
    "image_background": [
        "What is the background?", "What is in the background[ of the picture| of the image|]?", "[Which|What] background does the [picture|image] have?", "What pattern is [it|in the background]?",
        "Describe the background.", "What does the background look like?", "Tell me the background."],
    "image_colour": [
        "What [colour|color] is the {shape}?", "[Which|What] [colour|color] does the {shape} have?", "What is the [colour|color] of the {shape}?",
        "The {shape} is [which|what] [colour|color]?", "[Tell me|Name] the [colour|color] of the {shape}."],
    "image_background_colour": [
        "What [colour|color] is the background?", "[Which|What] [colour|color] does the background have?", "What is the [colour|color] of the background?",
        "The background is [which|what] [colour|color]?", "[Tell me|Name] the [colour|color] of the background."],
    "text_code": [
        "What is the code of {name}?", "What is the code that {name} has?", "Which code does {name} have?", "Tell me the code of {name}.",
        "[Which|What] number belongs to {name}?", "What [code|number] was given to {name}?", "What does the text say about the code of {name}?",
        "What is [the number of |]{name}'s code?", "Do you know the code of {name}?"],
    "text_keeps": [
        "What does {name} [keep|have at home|keep at home]?", "[Which|What] thing does {name} keep?", "What is kept by {name}?", "Tell me what {name} keeps.",
        "What is it that {name} keeps?", "What does the text say {name} keeps?", "What did {name} keep?", "What can be found at the home of {name}?"],
    "text_lives": [
        "Where does {name} live?", "In [which|what] [house|kind of house] does {name} live?", "What is the home of {name}?", "Tell me where {name} lives.",
        "What [colour|color] is the house of {name}?", "What does the text say about the house of {name}?", "Where can {name} be found?",
        "What house does {name} have?"],
}
PHRASES["none_card"] = PHRASES["card"] + PHRASES["when_card"] + PHRASES["card_after"]
PHRASES["none_thing"] = PHRASES["motion_thing"] + PHRASES["what_behind"] + PHRASES["thing_after"]
PHRASES["none_place"] = PHRASES["what_mover"] + PHRASES["motion_place"]
PHRASES["none_content"] = PHRASES["colour_card"]


def wordings(kind):
    """How many different sentences a kind can make."""
    total = 0
    for text in PHRASES[kind]:
        count = 1
        for choice in _CHOICE.findall(text):
            count *= choice.count("|") + 1
        total += count
    return total


@functools.cache
def _parts(text):
    """Alternating fixed text and tuples of choices."""
    return [part if i % 2 == 0 else tuple(part.split("|")) for i, part in enumerate(_CHOICE.split(text))]


def say(rng, kind, **words):
    """One wording of a question, now and then as careless as people type."""
    parts = _parts(rng.choice(PHRASES[kind]))
    text = "".join(p if isinstance(p, str) else rng.choice(p) for p in parts).format(**words)
    text = text.replace(" ?", "?").replace(" .", ".")
    if text[0].islower():
        text = text[0].upper() + text[1:]
    careless = rng.random()
    if careless < 0.06 and text[1].islower():
        text = text[0].lower() + text[1:]
    elif careless < 0.12:
        text = text.rstrip("?.")
    elif careless < 0.15:
        text = rng.choice(("Please answer: ", "Tell me: ", "Look closely. ", "In the video: ", "Hey, ")) + text
    # "a ant" -> "an ant"; "a milk" -> "milk" happens in the words themselves
    for vowel in "aeio":
        text = text.replace(f" a {vowel}", f" an {vowel}")
    return text
