"""Calls between two processes by lines of JSON over pipes: the two ends of a test, the program and its judge.

Arguments and results travel as plain data (`values.py`); what is not plain stays where it is and is known to the other
end by a number. A call may lead to calls the other way, of functions that were among its arguments.

A request is `["call", function, arguments, options]`: a number, or the name of an operation. An answer is `["value",
result, changes, printed]`, where `changes` are arguments that the call has changed, by their position, or `["raise",
class, arguments, text, printed]`.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brorl_graders.sandbox.values import NotPlainError, decode, to_data

MUTABLE = (list, dict, set, bytearray)


class PeerGoneError(BaseException):
    """The other process has ended, or says what makes no sense. Nothing that a test expects to be raised."""


class Peer(ABC):
    """One end. `operations` are what the other end may call by name; by number it may call what it was given. A
    message of more than `max_line` bytes ends it."""

    def __init__(
        self,
        read_from: int,
        write_to: int,
        operations: Mapping[str, Callable[..., Any]],
        max_line: int,
    ) -> None:
        self._reader = open(read_from, "rb")  # noqa: SIM115 open as long as this process lives
        self._write_to = write_to
        self._operations = operations
        self._max_line = max_line
        self._kept: list[Any] = []  # what the other end knows by its number
        self._numbers: dict[int, int] = {}  # by id
        self.is_gone = False

    def call(
        self,
        function: int | str,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
    ) -> Any:
        """Result of a function of the other end. Raises what it raised, and PeerGoneError."""
        data = [self.to_data(item) for item in arguments]
        named = {name: self.to_data(item) for name, item in options.items()}
        self._write(
            json.dumps(
                [
                    "call",
                    function,
                    data,
                    named,
                ]
            )
        )
        while True:
            message = self._receive()
            if message[0] != "call":
                return self._read_result(message, arguments)
            self._serve_call(message)

    def serve(self) -> None:
        """Answer calls until the other end is gone."""
        while True:
            try:
                message = self._receive()
            except PeerGoneError:
                return
            self._serve_call(message)

    @abstractmethod
    def keep(self, value: Any) -> dict[str, Any]:
        """What stands for a value that is not plain."""

    @abstractmethod
    def find(self, kind: str, content: Any) -> Any:
        """The value for which such a thing stands. Raises KeyError."""

    def to_data(self, value: Any) -> Any:
        """A value as JSON data."""
        return to_data(value, self.keep)

    def from_data(self, data: Any) -> Any:
        """The value of JSON data."""
        return decode(data, self.find)

    def take_printed(self) -> str:
        """What was printed here since the last time, for the other end to print."""
        return ""

    def number_of(self, value: Any) -> int:
        """Number by which the other end knows a value of this one."""
        number = self._numbers.get(id(value))
        if number is None:
            number = len(self._kept)
            self._kept.append(value)
            self._numbers[id(value)] = number
        return number

    def find_kept(self, number: int) -> Any:
        """The value of this end that has a number."""
        return self._kept[number]

    def error_class(self, kind: type) -> dict[str, Any]:
        """What stands for an exception's class: a name, or a number and the class that it is made from."""
        if is_library_error(kind):
            return {"name": f"{kind.__module__}.{kind.__qualname__}"}
        return {
            "error": [
                self.number_of(kind),
                kind.__name__,
                self.error_class(kind.__base__ or Exception),
            ]
        }

    def _serve_call(self, message: list[Any]) -> None:
        """Do a call and send what came of it."""
        try:
            _, function, data, named = message
            call = self._operations[function] if isinstance(function, str) else self._kept[function]
            arguments = [self.from_data(item) for item in data]
            options = {name: self.from_data(item) for name, item in named.items()}
            before = [self._mutable_content(item) for item in arguments]
            result = call(*arguments, **options)
            answer = [
                "value",
                self.result_data(call, result, arguments),
                self._changes(arguments, before),
            ]
            line = json.dumps([*answer, self.take_printed()])
        except PeerGoneError:
            raise
        except BaseException as error:  # noqa: BLE001 whatever a program raises goes to who called it
            line = json.dumps(self._error_message(error))
        self._write(line)

    def _mutable_content(self, argument: Any) -> Any:
        return self.to_data(argument) if type(argument) in MUTABLE else None

    def result_data(self, call: Callable[..., Any], result: Any, arguments: list[Any]) -> Any:
        """What a call returns; a result that is one of the arguments says which."""
        for index, argument in enumerate(arguments):
            if result is argument and type(argument) in MUTABLE:
                return {"argument": index}
        return self.to_data(result)

    def _changes(self, arguments: list[Any], before: list[Any]) -> list[list[Any]]:
        changes: list[list[Any]] = []
        for index, argument in enumerate(arguments):
            after = self._mutable_content(argument)
            if after != before[index]:
                changes.append([index, after])
        return changes

    def _error_message(self, error: BaseException) -> list[Any]:
        arguments = []
        for argument in error.args:
            try:
                arguments.append(to_data(argument, _refuse))
            except (NotPlainError, RecursionError):
                arguments.append(None)
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 a program's own exception
            text = ""
        about = self.error_class(type(error))
        return [
            "raise",
            about,
            arguments,
            text,
            self.number_of(error),
            self.take_printed(),
        ]

    def _read_result(self, message: list[Any], arguments: Sequence[Any]) -> Any:
        """What an answer says, for a call with these arguments."""
        try:
            kind = message[0]
            sys.stdout.write(message[-1])
            if kind == "value":
                _, data, changes, _ = message
                for index, after in changes:
                    replace_content(arguments[index], self.from_data(after))
                if isinstance(data, dict) and "argument" in data:
                    return arguments[data["argument"]]
                return self.from_data(data)
            _, about, data, text, number, _ = message
            error_class = self.from_data(about)
            error = _make_error(error_class, decode(data))
            vars(error).update(text=text, remote_number=number)
        except (ValueError, TypeError, LookupError) as problem:
            raise self._lose_peer(f"an answer that makes no sense: {problem}") from problem
        raise error

    def _write(self, text: str) -> None:
        line = text.encode() + b"\n"
        try:
            while line:
                num_written = os.write(self._write_to, line)
                line = line[num_written:]
        except OSError as error:
            raise self._lose_peer("the other process has ended") from error

    def _receive(self) -> list[Any]:
        line = self._reader.readline(self._max_line)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._lose_peer("the other process has ended, or says too much") from error
        if not isinstance(message, list) or not message:
            raise self._lose_peer("the other process says what makes no sense")
        return message

    def _lose_peer(self, text: str) -> PeerGoneError:
        self.is_gone = True
        return PeerGoneError(text)


def is_library_error(kind: type) -> bool:
    """Whether an exception's class is one of the standard library's that both ends have."""
    root, _, _ = kind.__module__.partition(".")
    return root in sys.stdlib_module_names or kind.__module__ == builtins.__name__


def replace_content(target: Any, content: Any) -> None:
    """Give a list, dict, set or bytearray the content of another one of its type."""
    if type(target) not in MUTABLE or type(target) is not type(content):
        raise TypeError("an argument of another type has changed")
    target.clear()
    if isinstance(target, list | bytearray):
        target.extend(content)
    else:
        target.update(content)


def _make_error(kind: type[BaseException], arguments: list[Any]) -> BaseException:
    try:
        return kind(*arguments)
    except TypeError:
        error = kind.__new__(kind, *arguments)
        error.args = tuple(arguments)
        return error


def _refuse(value: Any) -> dict[str, Any]:
    raise NotPlainError(f"a value of type {type(value).__name__} is not plain data")
