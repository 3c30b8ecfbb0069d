"""The table behind twenty questions: things, and what is true of them."""

from __future__ import annotations

from collections.abc import Mapping

_THINGS = """
dog cat horse cow elephant mouse lion eagle penguin owl chicken snake frog shark whale bee ant bat
oak rose cactus apple banana carrot potato bread cheese rice egg milk coffee chocolate
car bicycle train airplane boat hammer knife spoon chair bed lamp clock phone computer book pencil guitar drum ball umbrella
shoe mirror sun moon river mountain cloud snow
"""
THINGS: tuple[str, ...] = tuple(sorted(_THINGS.split()))
_LEGGED = "dog cat horse cow elephant mouse lion eagle penguin owl chicken frog bee ant bat"
_MADE = """bread cheese chocolate coffee car bicycle train airplane boat hammer knife spoon chair bed lamp clock phone computer
book pencil guitar drum ball umbrella shoe mirror"""
_BIG = "horse cow elephant lion shark whale oak car train airplane boat bed sun moon river mountain cloud"
_TABLE = {
    "alive living": f"{_LEGGED} snake shark whale oak rose cactus",
    "animal creature": f"{_LEGGED} snake shark whale",
    "legs": f"{_LEGGED} chair bed",
    "made manmade artificial": _MADE,
    "big bigger large larger": _BIG,
    "small smaller tiny": "mouse bee ant frog apple egg pencil spoon rice phone",
    "kitchen": "knife spoon bread cheese rice egg milk coffee potato carrot apple banana chocolate",
    "eat eaten edible food": "apple banana carrot potato bread cheese rice egg chocolate",
    "plant grow grows": "oak rose cactus apple banana carrot potato rice",
    "mammal": "dog cat horse cow elephant mouse lion whale bat",
    "fur furry hair": "dog cat horse cow mouse lion bat",
    "metal": "car bicycle train airplane hammer knife spoon",
    "farm": "horse cow chicken egg milk carrot potato",
    "water sea ocean swim": "shark whale frog penguin boat river",
    "electric electricity plug": "train lamp clock phone computer",
    "round": "apple potato ball sun moon drum clock",
    "fly flies flying wings": "eagle owl bee bat airplane",
    "dangerous": "lion snake shark knife bee",
    "wood wooden": "oak pencil chair guitar",
    "vehicle transport": "car bicycle train airplane boat",
    "sky": "sun moon cloud airplane eagle",
    "bird": "eagle penguin owl chicken",
    "tool": "hammer knife spoon pencil",
    "night": "owl bat moon lamp",
    "furniture": "chair bed lamp mirror",
    "pet": "dog cat mouse",
    "sweet": "apple banana chocolate",
    "fruit": "apple banana",
    "drink": "milk coffee",
    "dairy": "cheese milk",
    "music musical instrument": "guitar drum",
    "read reading": "book phone computer",
    "climb climbs": "cat snake ant",
    "ride ridden": "horse elephant bicycle",
    "smell smells": "rose coffee",
    "cold": "snow penguin",
    "rain": "umbrella cloud",
    "wear worn": "shoe",
}
ATTRIBUTES: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    words.split()[0]: (frozenset(words.split()), frozenset(things.split())) for words, things in _TABLE.items()
}
"""By name: the words that mean an attribute, and the things of which it is true."""
