"""The judge's end of a test: names of the program as objects that ask it (`peer.py`).

A value that is plain data comes as itself. Anything else stays with the program, which answers for it: so such an
object never equals plain data, there is no arithmetic of the two, and one that a function has returned has none of the
methods of plain types, to which a test would tell what it expects.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nemo_brorl.tasks.sandbox.peer import Peer, is_library_error
from nemo_brorl.tasks.sandbox.values import LISTS

# Operators between two objects of the program, and those that ask about one.
BINARY = "eq ne lt le gt ge add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift iadd isub imul"
UNARY = "neg pos abs invert bool len str repr hash int float complex index round format reversed dir"
PLAIN = (str, bytes, list, tuple, set, dict, int, float, complex)
# Names of double underscores that may be read: the others are how libraries look into an object.
READABLE = ("__name__", "__qualname__", "__doc__", "__dict__", "__annotations__", "__defaults__")
ARRAY_METHODS = ("equals", "all", "any", "array_equal", "allclose")
NEXT = "next"  # the operation that may end an iteration
# Exceptions of these would tell whoever runs a test what to make of it.
CONTROL_MODULES = ("unittest", "doctest")


class JudgeEnd(Peer):
    """Knows the objects of a program."""

    def __init__(self, read_from: int, write_to: int, max_line: int) -> None:
        super().__init__(read_from, write_to, {}, max_line)
        self._remotes: dict[int, Remote] = {}
        self._errors: dict[int, type[BaseException]] = {}
        self._kinds: dict[str, type[Remote]] = {}

    def names(self, names: list[str]) -> dict[str, Any]:
        """What the program calls by these names, as far as it does."""
        answer: dict[str, Any] = dict(self.call("names", names, {}))
        found: dict[str, Any] = {}
        for name in names:  # and no others, whatever the program says
            if name not in answer:
                continue
            value = answer[name]
            found[name] = value
            if isinstance(value, Remote):
                object.__setattr__(value, "_remote_is_class", name[:1].isupper())
        return found

    def call(
        self,
        function: int | str,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
    ) -> Any:
        """As `Peer.call`. Where the test did not ask for the next item, the end of an iteration is an error: in a `map`
        of the test it would pass for the end of its cases."""
        try:
            return super().call(function, arguments, options)
        except (StopIteration, StopAsyncIteration) as error:
            if function == NEXT:
                raise
            raise RuntimeError("the program raised StopIteration") from error

    def keep(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Remote):
            return {"yours": value._remote_place}
        kind = type(value)
        if kind.__name__ in LISTS or hasattr(kind, "__next__"):
            return {"iterator": [self.data(item) for item in value]}
        if callable(value):
            return self._function(value)
        if hasattr(value, "__dict__"):
            return {"object": [kind.__name__, self.data(vars(value))]}
        raise TypeError(f"a value of type {kind.__name__} cannot be given to a program")

    def find(self, kind: str, content: Any) -> Any:
        match kind:
            case "mine":
                return self._remote(*content)
            case "yours":
                return self.kept(content)
            case "name":
                return _named(content)
            case "error":
                return self._error(*content)
            case "coroutine":
                return self._awaited(content)
        raise KeyError(kind)

    def _function(self, value: Callable[..., Any]) -> dict[str, Any]:
        """What stands for a function: its name, where both ends have it."""
        module = getattr(value, "__module__", None)
        path = getattr(value, "__qualname__", "")
        if module in sys.stdlib_module_names and module != "__main__" and "<" not in path:
            return {"name": f"{module}:{path}"}
        return {"mine": self.place_of(value)}

    def _remote(self, place: int, kind: str) -> Remote:
        if place not in self._remotes:
            if kind not in self._kinds:
                self._kinds[kind] = type(kind, (Remote,), {"__slots__": ()})
            self._remotes[place] = self._kinds[kind](self, place)
        return self._remotes[place]

    def _error(self, place: int, name: str, base: dict[str, Any]) -> type[BaseException]:
        """A class of this process for a program's own class of exceptions."""
        if place not in self._errors:
            parent = self.find(*base.popitem())
            methods = {
                "__str__": lambda error: vars(error).get("text", ""),
                "__getattr__": lambda error, attribute: self._attribute(error, attribute),
            }
            self._errors[place] = type(name, (parent,), methods)
        return self._errors[place]

    def _attribute(self, error: BaseException, name: str) -> Any:
        if name.startswith("__") or "place" not in vars(error):
            raise AttributeError(name)
        return self.call("getattr", [self._remote(vars(error)["place"], "error"), name], {})

    async def _awaited(self, place: int) -> Any:
        return self.call("await", [self._remote(place, "coroutine")], {})


class Remote:
    """An object of the program."""

    __slots__ = ("_remote_end", "_remote_is_class", "_remote_is_own", "_remote_place")

    def __init__(self, end: JudgeEnd, place: int) -> None:
        object.__setattr__(self, "_remote_end", end)
        object.__setattr__(self, "_remote_place", place)
        object.__setattr__(self, "_remote_is_class", False)  # one that the test calls by a name of a class
        object.__setattr__(self, "_remote_is_own", False)  # made by the test, by calling such a class

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        result = self._remote_end.call(self._remote_place, arguments, options)
        if self._remote_is_class and isinstance(result, Remote):
            object.__setattr__(result, "_remote_is_own", True)
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in READABLE:
            raise AttributeError(name)
        if not (self._remote_is_class or self._remote_is_own) and _is_plain_method(name):
            raise AttributeError(f"what a function returned is no plain data: it has no {name!r} here")
        return _ask(self, "getattr", name)

    def __deepcopy__(self, memo: object) -> Remote:
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "setattr", name, value)

    def __getitem__(self, key: Any) -> Any:
        return _ask(self, "getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        _ask(self, "delitem", key)

    def __iter__(self) -> Iterator[Any]:
        iterator = _ask(self, "iter")
        return iterator if isinstance(iterator, Remote) else iter(iterator)

    def __next__(self) -> Any:
        return _ask(self, NEXT)

    def __instancecheck__(self, value: Any) -> bool:
        return bool(_ask_about(self, "isinstance", value))

    def __subclasscheck__(self, value: Any) -> bool:
        return bool(_ask_about(self, "issubclass", value))

    def __enter__(self) -> Any:
        return _ask(self, "getattr", "__enter__")()

    def __exit__(self, *error: object) -> Any:
        return _ask(self, "getattr", "__exit__")(None, None, None)


def _ask(remote: Remote, operation: str, *arguments: Any) -> Any:
    return remote._remote_end.call(operation, [remote, *arguments], {})


def _ask_about(remote: Remote, operation: str, value: Any) -> Any:
    return remote._remote_end.call(operation, [value, remote], {})


def _binary(operation: str) -> Callable[[Remote, Any], Any]:
    def ask(remote: Remote, other: Any) -> Any:
        return _ask(remote, operation, other) if isinstance(other, Remote) else NotImplemented

    return ask


def _unary(operation: str) -> Callable[..., Any]:
    def ask(remote: Remote, *arguments: Any) -> Any:
        return _ask(remote, operation, *arguments)

    return ask


for _name in BINARY.split():
    setattr(Remote, f"__{_name.strip('_')}__", _binary(_name))
for _name in UNARY.split():
    setattr(Remote, f"__{_name}__", _unary(_name))


def _is_plain_method(name: str) -> bool:
    return name in ARRAY_METHODS or any(hasattr(kind, name) for kind in PLAIN)


def _named(path: str) -> Any:
    """A class that both ends have: a plain type, or an exception of the standard library."""
    module, _, name = path.rpartition(".")
    if module not in sys.modules:
        return Exception
    found = getattr(sys.modules[module], name)
    is_class = isinstance(found, type) and found.__module__ == module
    if is_class and module == builtins.__name__:
        return found
    if not is_class or module.partition(".")[0] in CONTROL_MODULES:
        raise KeyError(path)
    if not issubclass(found, BaseException) or not is_library_error(found):
        raise KeyError(path)
    return found
