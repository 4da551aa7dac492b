"""Read units of measurement, to see whether two are the same up to a factor: 5 m is 500 cm, and neither 5 cm nor 5 s.

Known are metric units with prefixes, units of time, everyday units and currencies, in products, quotients and powers.
Any other word after a number ("5 apples") is an unknown unit, which equals only itself.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

MAX_LENGTH = 60  # characters of a unit
MAX_POWER = 9

# Symbol, word and power of ten of each prefix, and symbol and names of each unit that takes them.
_PREFIX_ROWS = """n nano -9; μ micro -6; m milli -3; c centi -2; d deci -1; k kilo 3; M mega 6; G giga 9; T tera 12"""
_METRIC_ROWS = """
m meter metre; g gram gramme; s second sec; L liter litre; N newton; J joule; W watt; Pa pascal; V volt; A ampere amp
Hz hertz; mol mole; eV electronvolt; C coulomb; T tesla; F farad; K kelvin; Ω ohm; cd candela; lm lumen; lx lux
Wb weber; H henry; Bq becquerel; Gy gray; Sv sievert; bar bar; B byte; bit bit; pc parsec
"""
_PREFIXES = [
    (symbol, word, Fraction(10) ** int(power)) for symbol, word, power in map(str.split, _PREFIX_ROWS.split(";"))
]
_METRIC = [row.split() for row in _METRIC_ROWS.strip().replace("\n", ";").split(";")]
_OTHERS = r"""
Pa: 101325 atm atmosphere
torr: 1 mmHg torr
psi: 1 psi
btu: 1 BTU btu
hp: 1 horsepower hp
m: 1/10000000000 Å angstrom
hectare: 1 ha hectare
J: 1/10000000 erg; 523/125 cal calorie; 4184 kcal kilocalorie
g: 1/5 carat; 100000 quintal; 1000000 tonne ton
ounce: 1 oz ounce; 16 lb pound; 224 stone
grain: 1 grain
knot: 1 knot kn
inch: 1 in inch inche; 12 ft foot feet; 36 yd yard; 72 fathom; 198 rod; 7920 furlong; 63360 mi mile; 190080 league
ly: 1 ly lightyear
au: 1 au AU
gallon: 1/768 teaspoon tsp; 1/256 tablespoon tbsp; 1/16 cup; 1/8 pint pt; 1/4 quart qt; 1 gal gallon
barrel: 1 barrel
bushel: 1 bushel
month: 1 month; 12 year yr; 120 decade; 1200 century centurie
s: 60 min minute; 3600 h hr hour; 86400 day; 604800 week; 1209600 fortnight
rpm: 1 rpm
dB: 1 dB decibel
mol: 1 mole
poise: 1 poise
N: 1/100000 dyn dyne
T: 1/10000 gauss
rupee: 1 rupee
yen: 1 yen
yuan: 1 yuan
peso: 1 peso
franc: 1 franc
degree: 1/3600 arcsecond; 1/60 arcminute; 9/10 gradian; 1 ^\circ deg degree
revolution: 1 revolution
mil: 1 mil
L: 1 l
acre: 1 acre
celsius: 1 celsius
fahrenheit: 1 fahrenheit
radian: 1 rad radian
dollar: 1/100 cent; 1 dollar USD
euro: 1 EUR euro
"""
# Units that are products of others, in grams, meters, seconds and amperes.
_DERIVED = """
1000 N: g m s-2
1000 J: g m2 s-2
1000 W: g m2 s-3
1000 Pa: g m-1 s-2
1000 V: g m2 s-3 A-1
1000 Ω: g m2 s-3 A-2
1000 T: g s-2 A-1
1000 Wb: g m2 s-2 A-1
1000 H: g m2 s-2 A-2
1/1000 F: g-1 m-2 s4 A2
1/1000 L: m3
1 C: s A
1 Hz: s-1
"""
_WHOLE_WORDS = {
    "mph": "mi/h",
    "kmh": "km/h",
    "kph": "km/h",
    "kmph": "km/h",
    "kwh": "kW h",
}
_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
_FRACTION = re.compile(r"\\frac ?\{((?:[^{}]|\{[^{}]*\})*)\} ?\{((?:[^{}]|\{[^{}]*\})*)\}")
_TEMPERATURE = re.compile(r"(?:\^\s*\\circ|\bdegrees?)\s*(?:C(?:elsius)?|(F)(?:ahrenheit)?)(?![A-Za-z])", re.IGNORECASE)
_PREFIXED = re.compile(r"(?:(?<![A-Za-z])([kMGm]) ?)?\\[oO]mega(?![A-Za-z])")  # also `\text{k}\Omega`
_MICRO = re.compile(r"\\mu\s*(?=[A-Za-zΩ])")
_PART = re.compile(r"([A-Za-z]+)(-?\d)?")
_PER = re.compile(r"\bper\b")
_POWER_WORD = re.compile(r"\b(square|sq|cubic|cu)\b\.? ?([A-Za-z]+)", re.IGNORECASE)
_BELOW = re.compile(r"/ ?\(([^()]*)\)$")
_ATOM = re.compile(
    r" ?(?P<sign>[/*]|\\cdot|\\times)? ?(?P<name>\^\\circ|[A-Za-zμΩ]+)\.?"
    r"(?: ?\^ ?(?P<power>-?\d)|(?P<digit>-?\d))?"
)


class Unit(NamedTuple):
    """A product of powers of base units, times a factor."""

    powers: frozenset[tuple[str, int]]
    factor: Fraction


DEGREE = Unit(frozenset({("degree", 1)}), Fraction(1))
_WARM = {("celsius", 1), ("fahrenheit", 1)}


def are_alike(one: Unit, other: Unit) -> bool:
    """Return whether two units measure the same. A degree may be one of temperature."""
    return one.powers == other.powers or (DEGREE in (one, other) and not {*one.powers, *other.powers}.isdisjoint(_WARM))


def unknown_unit(words: str) -> Unit:
    """Return the unit of things that are counted, such as "red marbles". It equals only the same words."""
    singular = words.removesuffix("s")
    return Unit(frozenset({(f"one {singular}", 1)}), Fraction(1))


@lru_cache(maxsize=4096)
def read_unit(text: str) -> Unit | None:
    """Return the unit of measurement that a text in plain LaTeX names, or None if the unit is unknown."""
    if len(text) > MAX_LENGTH:
        return None
    plain = _TEXT.sub(r" \1 ", _FRACTION.sub(r"\1/(\2)", text)).replace("{", "").replace("}", "")
    plain = _MICRO.sub("μ", _PREFIXED.sub(r"\1Ω", plain)).strip()
    plain = _TEMPERATURE.sub(lambda found: "fahrenheit" if found[1] else "celsius", plain)
    plain = _PER.sub("/", _BELOW.sub(r"/\1", plain)).rstrip()
    plain = _POWER_WORD.sub(_with_power, plain)
    plain = _WHOLE_WORDS.get(plain.lower(), plain)
    powers: dict[str, int] = {}
    factor = Fraction(1)
    place = 0
    is_below = False
    while place < len(plain):
        atom = _ATOM.match(plain, place)
        base = _base(atom["name"]) if atom else None
        if atom is None or base is None:
            return None
        is_below = is_below or atom["sign"] == "/"
        power = int(atom["power"] or atom["digit"] or 1)
        if is_below:
            power = -power
        name, worth = base
        times, parts = _products().get(name, (1, ((name, 1),)))
        for part, exponent in parts:
            powers[part] = powers.get(part, 0) + exponent * power
        factor *= (worth * times) ** power
        place = atom.end()
    if not powers:
        return None
    return Unit(frozenset(item for item in powers.items() if item[1]), factor)


def _with_power(found: re.Match[str]) -> str:
    power = "2" if found[1].lower().startswith("sq") else "3"
    return f"{found[2]}^{power}"


def _base(name: str) -> tuple[str, Fraction] | None:
    """Return the base unit of a unit's name or symbol, and how many base units it is worth. None: it is unknown."""
    known = _symbols().get(name)
    if known is not None:
        return known
    small = name.lower()
    for spelling in (small, small.removesuffix("s")):
        if len(spelling) > 1 and spelling in _words():
            return _words()[spelling]
    return None


@lru_cache(maxsize=1)
def _symbols() -> dict[str, tuple[str, Fraction]]:
    """Return the base unit of every known unit symbol, and how many base units the symbol is worth.

    Symbols have one spelling, and their case counts.
    """
    found = {}
    for symbol, *_ in _METRIC:
        found[symbol] = (symbol, Fraction(1))
        for prefix, _, worth in _PREFIXES:
            found[prefix + symbol] = (symbol, worth)
    for row in _OTHERS.strip().split("\n"):
        base, _, worths = row.partition(": ")
        for names_of_one in worths.split("; "):
            number, *names = names_of_one.split()
            found |= dict.fromkeys(names, (base, Fraction(number)))
    return found


@lru_cache(maxsize=1)
def _products() -> dict[str, tuple[Fraction, tuple[tuple[str, int], ...]]]:
    """Return of every derived unit how many products of base units it is worth, and their powers."""
    found = {}
    for row in _DERIVED.strip().split("\n"):
        times, name, parts = row.replace(":", "").split(maxsplit=2)
        found[name] = (Fraction(times), tuple((part, int(power or 1)) for part, power in _PART.findall(parts)))
    return found


@lru_cache(maxsize=1)
def _words() -> dict[str, tuple[str, Fraction]]:
    """Return the base unit of every known unit name, and how many base units the name is worth.

    The names are in lower case and in the singular.
    """
    found = {}
    for symbol, *names in _METRIC:
        for name in names:
            found[name] = (symbol, Fraction(1))
            for _, word, worth in _PREFIXES:
                found[word + name] = (symbol, worth)
    for symbol, base in _symbols().items():
        if len(symbol) > 1 and symbol.islower():
            found.setdefault(symbol, base)
    return found
