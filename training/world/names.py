"""Everything in the world that has a name.

Order matters: the index of a picture, glyph, colour or pattern is its index in the atlas, in the
renderer's parameters and in the labels of vision pre-training. Append; never reorder.
"""

COLOURS = {
    "red": (214, 40, 40), "orange": (245, 140, 20), "yellow": (246, 220, 50), "green": (40, 160, 60),
    "blue": (40, 90, 220), "purple": (140, 50, 190), "white": (242, 242, 242), "black": (22, 22, 24),
}
BACKGROUND_COLOURS = {
    "red": (205, 60, 55), "orange": (235, 128, 36), "yellow": (222, 214, 62), "green": (70, 165, 80),
    "blue": (70, 110, 215), "purple": (150, 80, 190), "gray": (150, 150, 150), "teal": (40, 175, 175),
}
PATTERNS = ["stripes", "checks", "dots", "waves", "rings"]
SHAPES = ["circle", "square", "triangle", "diamond", "cross", "ring"]
DIRECTIONS = ["left", "right", "up", "down"]
GLYPHS = "0123456789ACEFHKLMNPRTXY"
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]

# group -> "name:code point[:plural]"
_GROUPS = {
    "animal": """dog:1f415 cat:1f408 mouse:1f42d:mice hamster:1f439 rabbit:1f430 fox:1f98a bear:1f43b panda:1f43c
        koala:1f428 tiger:1f42f lion:1f981 cow:1f42e pig:1f437 frog:1f438 monkey:1f412 chicken:1f414 penguin:1f427
        duck:1f986 owl:1f989 bat:1f987 wolf:1f43a:wolves horse:1f434 unicorn:1f984 bee:1f41d butterfly:1f98b:butterflies
        snail:1f40c ladybug:1f41e ant:1f41c spider:1f577 scorpion:1f982 turtle:1f422 snake:1f40d octopus:1f419:octopuses
        squid:1f991 shrimp:1f990 crab:1f980 fish:1f41f:fish dolphin:1f42c whale:1f433 shark:1f988 crocodile:1f40a
        zebra:1f993 gorilla:1f98d elephant:1f418 rhino:1f98f camel:1f42b giraffe:1f992 kangaroo:1f998 sheep:1f411:sheep
        deer:1f98c:deer rooster:1f413 peacock:1f99a parrot:1f99c swan:1f9a2 squirrel:1f43f hedgehog:1f994 chick:1f425
        eagle:1f985 dragon:1f409""",
    "food": """apple:1f34e pear:1f350 tangerine:1f34a lemon:1f34b banana:1f34c watermelon:1f349 grapes:1f347:grapes
        strawberry:1f353:strawberries cherry:1f352:cherries peach:1f351 pineapple:1f34d coconut:1f965 kiwi:1f95d tomato:1f345:tomatoes
        eggplant:1f346 avocado:1f951 broccoli:1f966:broccoli cucumber:1f952 pepper:1f336 corn:1f33d:corn carrot:1f955
        croissant:1f950 bread:1f35e:bread pretzel:1f968 cheese:1f9c0:cheese egg:1f95a pancake:1f95e bacon:1f953:bacon
        burger:1f354 pizza:1f355 hotdog:1f32d taco:1f32e cookie:1f36a cake:1f370 donut:1f369 popcorn:1f37f:popcorn
        coffee:2615:coffee milk:1f95b:milk sushi:1f363:sushi noodles:1f35c:noodles""",
    "vehicle": """car:1f697 taxi:1f695 bus:1f68c:buses ambulance:1f691 tractor:1f69c truck:1f69a bicycle:1f6b2 scooter:1f6f4
        motorcycle:1f3cd train:1f686 airplane:2708 helicopter:1f681 rocket:1f680 sailboat:26f5 ship:1f6a2 canoe:1f6f6
        satellite:1f6f0 locomotive:1f682""",
    "plant": """rose:1f339 sunflower:1f33b tulip:1f337 cactus:1f335:cacti palm:1f334 pine:1f332 clover:1f340 mushroom:1f344
        leaf:1f341:leaves hibiscus:1f33a""",
    "tool": """hammer:1f528 wrench:1f527 saw:1fa9a key:1f511 scissors:2702:scissors lamp:1f4a1 umbrella:2602 clock:23f0
        telescope:1f52d magnet:1f9f2 broom:1f9f9 bucket:1faa3 ladder:1fa9c anchor:2693 compass:1f9ed:compasses""",
    "instrument": """guitar:1f3b8 violin:1f3bb trumpet:1f3ba drum:1f941 piano:1f3b9 saxophone:1f3b7 banjo:1fa95 bell:1f514""",
    "clothing": """shirt:1f455 jeans:1f456:jeans dress:1f457:dresses hat:1f3a9 crown:1f451 shoe:1f45f boot:1f462 scarf:1f9e3:scarves
        sock:1f9e6 glove:1f9e4 coat:1f9e5 glasses:1f453:glasses""",
    "toy": """football:26bd basketball:1f3c0 baseball:26be racket:1f3be volleyball:1f3d0 kite:1fa81 balloon:1f388
        dart:1f3af robot:1f916 snowman:26c4:snowmen""",
}


def _pictures():
    pictures = []
    for group, text in _GROUPS.items():
        for entry in text.split():
            name, code, *plural = entry.split(":")
            regular = name + ("es" if name.endswith(("s", "x", "ch", "sh")) else "s")
            pictures.append((name, plural[0] if plural else regular, group, int(code, 16)))
    return pictures


_ALL = _pictures()
PICTURES = [p[0] for p in _ALL]
PLURALS = [p[1] for p in _ALL]
PICTURE_GROUP = [p[2] for p in _ALL]
CODE_POINTS = [p[3] for p in _ALL]
GROUPS = list(_GROUPS)

COLOUR_NAMES = list(COLOURS)
BACKGROUND_NAMES = list(BACKGROUND_COLOURS)
BACKGROUNDS = len(BACKGROUND_NAMES) * len(PATTERNS)


def background_name(index):
    return f"{BACKGROUND_NAMES[index // len(PATTERNS)]} {PATTERNS[index % len(PATTERNS)]}"


# said without "a", and never counted: "milk", "grapes"
UNCOUNTED = {n for n, p in zip(PICTURES, PLURALS) if n == p} - {"fish", "sheep", "deer"}


def with_article(words):
    if words in UNCOUNTED:
        return words
    return ("an " if words[0] in "aeio" else "a ") + words
