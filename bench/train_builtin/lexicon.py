"""Where names, numbers and words come from.

Invented names are drawn from a space of millions and split in two by a checksum: training never sees the
names that the held-out evaluation uses, so a right answer there was copied from the prompt, not remembered.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def _list(words: str) -> list[str]:
    return words.split()


ONSETS = _list("b br c ch d dr f fl g gr h j k kr l m n p pr qu r s sh sk st t th tr v w y z")
VOWELS = _list("a e i o u a e i o u ai ea ee ia io ou")
CODAS = ["", "", "", *_list("n r l s m k x t d th nd ll rn sk")]
FIRST_NAMES = _list(
    "Mira Jonas Aisha Pedro Lena Omar Priya Viktor Sofia Kenji Clara Tomas Nadia Felix Ingrid Mateo Yuki "
    "Hannah Luca Zara Emil Freya Diego Amara Oscar Leila Hugo Nora Samir Greta Pavel Rosa Anton Maya "
    "Elias Wanda Ravi Julia Marek Olga Simon Tara Boris Edith Carlos Helga Ivan Kira Noah Anna Peter "
    "Laura Daniel Emma Paul Sara"
)
SURNAMES = _list(
    "Okafor Lindqvist Moreau Tanaka Novak Silva Hartmann Petrov Castillo Berg Rossi Khan Dubois Fischer "
    "Nguyen Kowalski Jensen Marino Weber Haddad Olsen Ferrari Keller Santos Ivanov Murphy Brandt Costa "
    "Larsen Meyer"
)
CITIES = _list(
    "Paris Lisbon Oslo Cairo Lima Kyoto Berlin Madrid Vienna Dublin Prague Nairobi Toronto Warsaw Athens "
    "Seoul Boston Porto Bergen Geneva Quito Mumbai Lyon Turin Krakow Hamburg Utrecht Seville Tallinn "
    "Zagreb"
)
MONTHS = _list("January February March April May June July August September October November December")
WEEKDAYS = _list("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
COLOURS = _list(
    "red blue green yellow orange purple pink black white grey brown silver golden turquoise violet "
    "crimson beige"
)
JOBS = _list(
    "baker teacher nurse carpenter painter lawyer doctor farmer pilot gardener librarian plumber tailor "
    "chef journalist dentist mechanic translator designer photographer musician banker fisherman sculptor "
    "surgeon potter judge writer programmer beekeeper"
)
PETS = _list("dog cat parrot rabbit hamster horse turtle goldfish pony snake")
FOODS = _list(
    "pizza pasta sushi soup bread cheese rice curry salad chocolate pancakes noodles tacos dumplings "
    "lasagna mushrooms potatoes cake"
)
HOBBIES = _list(
    "chess painting hiking sailing fishing gardening cooking dancing reading running swimming knitting "
    "climbing cycling pottery skiing singing archery surfing juggling"
)
INSTRUMENTS = _list("piano guitar violin flute cello trumpet harp drums clarinet banjo")
LANGUAGES = _list("French Spanish German Italian Japanese Arabic Polish Dutch Swedish Greek Korean Turkish")
GOODS = _list(
    "lamps chairs books bottles apples pears pencils cups candles towels shirts baskets mirrors clocks "
    "plates carpets notebooks blankets spoons bags"
)
PRODUCTS = _list(
    "lamp chair kettle bicycle radio clock camera backpack tent drill scooter heater blender guitar desk"
)
MATERIALS = _list("steel glass bamboo copper leather ceramic cotton plastic granite bronze oak wool")
TAGS = _list(
    "urgent travel music garden health sport family school kitchen winter summer office holiday science "
    "history money weather coffee nature design"
)
SIZES = ["small", "medium", "large"]
LEVELS = ["low", "normal", "high"]


class Words:
    """Draws values with one random stream; `held_out` chooses the half of the invented names."""

    def __init__(self, rng: random.Random, held_out: bool = False) -> None:
        self.rng = rng
        self.held_out = held_out

    def pick(self, options: Sequence[T]) -> T:
        return self.rng.choice(options)

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        return self.rng.sample(options, count)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def between(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def invented(self) -> str:
        """A capitalised made-up name of two or three syllables, from this stream's side of the split."""
        while True:
            syllables = 2 if self.chance(0.75) else 3
            letters = "".join(self.pick(ONSETS) + self.pick(VOWELS) for _ in range(syllables)) + self.pick(
                CODAS
            )
            name = letters.capitalize()
            if is_held_out(name) == self.held_out:
                return name

    def _real_or_invented(self, real: Sequence[str]) -> str:
        return self.pick(real) if not self.held_out and self.chance(0.35) else self.invented()

    def first_name(self) -> str:
        return self._real_or_invented(FIRST_NAMES)

    def surname(self) -> str:
        return self._real_or_invented(SURNAMES)

    def full_name(self) -> str:
        return f"{self.first_name()} {self.surname()}"

    def city(self) -> str:
        return self._real_or_invented(CITIES)

    def number(self) -> str:
        """Two to five digits without a leading zero, the number of digits being drawn first."""
        digits = self.between(2, 5)
        return str(self.between(10 ** (digits - 1), 10**digits - 1))

    def year(self) -> str:
        return str(self.between(1500, 2030))

    def date(self) -> str:
        return f"{self.between(1, 28)} {self.pick(MONTHS)}"

    def code(self) -> str:
        letters = "".join(self.pick("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(2))
        return f"{letters}-{self.between(100, 9999)}"


def is_held_out(name: str) -> bool:
    return zlib.crc32(name.encode()) % 8 == 0
