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

_PREFIXES = {
    "n": Fraction(1, 10**9),
    "μ": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "c": Fraction(1, 100),
    "d": Fraction(1, 10),
    "k": Fraction(1000),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
}
_PREFIX_WORDS = {
    "nano": "n",
    "micro": "μ",
    "milli": "m",
    "centi": "c",
    "deci": "d",
    "kilo": "k",
    "mega": "M",
    "giga": "G",
    "tera": "T",
}
_METRIC = {
    "m": ("meter", "metre"),
    "g": ("gram", "gramme"),
    "s": ("second", "sec"),
    "L": ("liter", "litre"),
    "N": ("newton",),
    "J": ("joule",),
    "W": ("watt",),
    "Pa": ("pascal",),
    "V": ("volt",),
    "A": ("ampere", "amp"),
    "Hz": ("hertz",),
    "mol": ("mole",),
    "eV": ("electronvolt",),
    "C": ("coulomb",),
    "T": ("tesla",),
    "F": ("farad",),
    "K": ("kelvin",),
    "Ω": ("ohm",),
    "cd": ("candela",),
    "lm": ("lumen",),
    "lx": ("lux",),
    "Wb": ("weber",),
    "H": ("henry",),
    "Bq": ("becquerel",),
    "Gy": ("gray",),
    "Sv": ("sievert",),
    "bar": ("bar",),
    "B": ("byte",),
    "bit": ("bit",),
    "pc": ("parsec",),
}
_OTHERS: dict[str, tuple[str, Fraction | int]] = {
    "atm": ("Pa", 101325),
    "atmosphere": ("Pa", 101325),
    "mmHg": ("torr", 1),
    "torr": ("torr", 1),
    "psi": ("psi", 1),
    "BTU": ("btu", 1),
    "btu": ("btu", 1),
    "horsepower": ("hp", 1),
    "hp": ("hp", 1),
    "Å": ("m", Fraction(1, 10**10)),
    "angstrom": ("m", Fraction(1, 10**10)),
    "ha": ("hectare", 1),
    "hectare": ("hectare", 1),
    "cal": ("J", Fraction(4184, 1000)),
    "calorie": ("J", Fraction(4184, 1000)),
    "kcal": ("J", 4184),
    "kilocalorie": ("J", 4184),
    "tonne": ("g", 10**6),
    "quintal": ("g", 10**5),
    "carat": ("g", Fraction(1, 5)),
    "stone": ("ounce", 224),
    "grain": ("grain", 1),
    "knot": ("knot", 1),
    "kn": ("knot", 1),
    "fathom": ("inch", 72),
    "furlong": ("inch", 7920),
    "rod": ("inch", 198),
    "league": ("inch", 190080),
    "ly": ("ly", 1),
    "lightyear": ("ly", 1),
    "au": ("au", 1),
    "AU": ("au", 1),
    "cup": ("gallon", Fraction(1, 16)),
    "pint": ("gallon", Fraction(1, 8)),
    "pt": ("gallon", Fraction(1, 8)),
    "quart": ("gallon", Fraction(1, 4)),
    "qt": ("gallon", Fraction(1, 4)),
    "tablespoon": ("gallon", Fraction(1, 256)),
    "tbsp": ("gallon", Fraction(1, 256)),
    "teaspoon": ("gallon", Fraction(1, 768)),
    "tsp": ("gallon", Fraction(1, 768)),
    "barrel": ("barrel", 1),
    "bushel": ("bushel", 1),
    "decade": ("month", 120),
    "century": ("month", 1200),
    "centurie": ("month", 1200),
    "fortnight": ("s", 14 * 86400),
    "rpm": ("rpm", 1),
    "dB": ("dB", 1),
    "decibel": ("dB", 1),
    "mole": ("mol", 1),
    "poise": ("poise", 1),
    "dyn": ("N", Fraction(1, 10**5)),
    "dyne": ("N", Fraction(1, 10**5)),
    "erg": ("J", Fraction(1, 10**7)),
    "gauss": ("T", Fraction(1, 10**4)),
    "rupee": ("rupee", 1),
    "yen": ("yen", 1),
    "yuan": ("yuan", 1),
    "peso": ("peso", 1),
    "franc": ("franc", 1),
    "gradian": ("degree", Fraction(9, 10)),
    "arcminute": ("degree", Fraction(1, 60)),
    "arcsecond": ("degree", Fraction(1, 3600)),
    "revolution": ("revolution", 1),
    "mil": ("mil", 1),
    "l": ("L", 1),
    "min": ("s", 60),
    "minute": ("s", 60),
    "h": ("s", 3600),
    "hr": ("s", 3600),
    "hour": ("s", 3600),
    "day": ("s", 86400),
    "week": ("s", 7 * 86400),
    "month": ("month", 1),
    "year": ("month", 12),
    "yr": ("month", 12),
    "in": ("inch", 1),
    "inch": ("inch", 1),
    "inche": ("inch", 1),
    "ft": ("inch", 12),
    "foot": ("inch", 12),
    "feet": ("inch", 12),
    "yd": ("inch", 36),
    "yard": ("inch", 36),
    "mi": ("inch", 63360),
    "mile": ("inch", 63360),
    "oz": ("ounce", 1),
    "ounce": ("ounce", 1),
    "lb": ("ounce", 16),
    "pound": ("ounce", 16),
    "ton": ("g", 10**6),
    "gal": ("gallon", 1),
    "gallon": ("gallon", 1),
    "acre": ("acre", 1),
    "^\\circ": ("degree", 1),
    "deg": ("degree", 1),
    "degree": ("degree", 1),
    "celsius": ("celsius", 1),
    "fahrenheit": ("fahrenheit", 1),
    "rad": ("radian", 1),
    "radian": ("radian", 1),
    "cent": ("dollar", Fraction(1, 100)),
    "dollar": ("dollar", 1),
    "USD": ("dollar", 1),
    "EUR": ("euro", 1),
    "euro": ("euro", 1),
}
_WHOLE_WORDS = {
    "mph": "mi/h",
    "kmh": "km/h",
    "kph": "km/h",
    "kwh": "kW h",
}
_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
_FRACTION = re.compile(r"\\frac ?\{((?:[^{}]|\{[^{}]*\})*)\} ?\{((?:[^{}]|\{[^{}]*\})*)\}")
_TEMPERATURE = re.compile(r"(?:\^\s*\\circ|\bdegrees?)\s*(?:C(?:elsius)?|(F)(?:ahrenheit)?)(?![A-Za-z])", re.IGNORECASE)
_PREFIXED = re.compile(r"(?:(?<![A-Za-z])([kMGm]) ?)?\\[oO]mega(?![A-Za-z])")  # also `\text{k}\Omega`
_MICRO = re.compile(r"\\mu\s*(?=[A-Za-zΩ])")
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
        powers[name] = powers.get(name, 0) + power
        factor *= worth**power
        place = atom.end()
    if not powers:
        return None
    return Unit(frozenset(powers.items()), factor)


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
    for symbol in _METRIC:
        found[symbol] = (symbol, Fraction(1))
        for prefix, worth in _PREFIXES.items():
            found[prefix + symbol] = (symbol, worth)
    for name, (base, number) in _OTHERS.items():
        found[name] = (base, Fraction(number))
    return found


@lru_cache(maxsize=1)
def _words() -> dict[str, tuple[str, Fraction]]:
    """Return the base unit of every known unit name, and how many base units the name is worth.

    The names are in lower case and in the singular.
    """
    found = {}
    for symbol, names in _METRIC.items():
        for name in names:
            found[name] = (symbol, Fraction(1))
            for word, prefix in _PREFIX_WORDS.items():
                found[word + name] = (symbol, _PREFIXES[prefix])
    for symbol, base in _symbols().items():
        if len(symbol) > 1 and symbol.islower():
            found.setdefault(symbol, base)
    return found
