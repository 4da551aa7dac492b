"""Calls between two processes by lines of JSON over pipes: the program in its sandbox and the judge in another.

Arguments and results are sent as plain data (`values.py`). A value that is not plain stays in its process, and the
other process refers to it by a number. A call may lead to calls in the other direction, of functions among its
arguments.

A request is `["call", function, arguments, options]`, where `function` is a number or the name of an operation. An
answer is `["value", result, changes, printed]` or `["raise", class, arguments, text, number, printed]`. `changes` lists
arguments that the call has changed, by their position.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brorl_graders.sandbox.values import NotPlainError, decode, refuse, to_data

MUTABLE = (list, dict, set, bytearray)


class PeerGoneError(BaseException):
    """An error for a program or judge whose process has exited or sends malformed messages.

    It derives from BaseException, so that no test takes it for an exception of the program.
    """


class Peer(ABC):
    """One end of a connection between a program and its judge, which calls the other end and serves its calls."""

    hears_program = False  # whether the other end is a program, whose values have a limited size

    def __init__(
        self,
        read_from: int,
        write_to: int,
        operations: Mapping[str, Callable[..., Any]],
        max_line: int,
    ) -> None:
        """Open a connection between a sandboxed program and its judge over two file descriptors.

        The other process may call `operations` by name, and objects that this process has sent it by number. A
        message of more than `max_line` bytes ends the connection.
        """
        self._reader = open(read_from, "rb")  # noqa: SIM115 open until the process exits
        self._write_to = write_to
        self._operations = operations
        self._max_line = max_line
        self._kept: list[Any] = []  # values that the other end knows by their index
        self._numbers: dict[int, int] = {}  # numbers of these values by their id()
        self.is_gone = False

    def call(
        self,
        function: int | str,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
    ) -> Any:
        """Call a function of the process at the other end of the connection, and return its result.

        Raises what the function raised, and PeerGoneError when the other process has exited.
        """
        data = [self.to_data(item) for item in arguments]
        named = {name: self.to_data(item) for name, item in options.items()}
        self._write(json.dumps(["call", function, data, named]))
        while True:
            message = self._receive()
            if message[0] != "call":
                return self._read_result(message, arguments)
            self._serve_call(message)

    def serve(self) -> None:
        """Serve the calls of the process at the other end of the connection until that process has exited."""
        while True:
            try:
                message = self._receive()
            except PeerGoneError:
                return
            self._serve_call(message)

    @abstractmethod
    def keep(self, value: Any) -> dict[str, Any]:
        """Return JSON data by which the other process (program or judge) can refer to a value that cannot be sent."""

    @abstractmethod
    def find(self, kind: str, content: Any) -> Any:
        """Return the value that a reference in JSON data from the other process (program or judge) means.

        Raises KeyError when there is no such value.
        """

    def to_data(self, value: Any) -> Any:
        """Convert a value to JSON data that the other process (program or judge) can read."""
        return to_data(value, self.keep)

    def from_data(self, data: Any) -> Any:
        """Convert JSON data that the other process (program or judge) has sent to a value."""
        return decode(data, self.find, self.hears_program)

    def take_printed(self) -> str:
        """Return what was printed in this process since the last message, for the other process to print.

        This process and the other one are a sandboxed program and its judge.
        """
        return ""

    def number_of(self, value: Any) -> int:
        """Return the number by which the other process (program or judge) refers to a value of this process.

        The first call for a value assigns its number.
        """
        number = self._numbers.get(id(value))
        if number is None:
            number = len(self._kept)
            self._kept.append(value)
            self._numbers[id(value)] = number
        return number

    def find_kept(self, number: int) -> Any:
        """Return the value of this process to which the other process (program or judge) refers by a number."""
        return self._kept[number]

    def error_class(self, kind: type) -> dict[str, Any]:
        """Return JSON data that describes an exception class to the other process (program or judge).

        A class of the standard library is sent by name, and any other as a number, its name and its base class.
        """
        if is_library_error(kind):
            return {"name": f"{kind.__module__}.{kind.__qualname__}"}
        parent = self.error_class(kind.__base__ or Exception)
        return {"error": [self.number_of(kind), kind.__name__, parent]}

    def _serve_call(self, message: list[Any]) -> None:
        """Execute a function call that the other process (program or judge) has sent, and send back the result.

        Sends the exception instead when the function raises one.
        """
        try:
            _, function, data, named = message
            call = self._operations[function] if isinstance(function, str) else self._kept[function]
            arguments = [self.from_data(item) for item in data]
            options = {name: self.from_data(item) for name, item in named.items()}
            before = [self._mutable_content(item) for item in arguments]
            result = call(*arguments, **options)
            answer = ["value", self.result_data(call, result, arguments), self._changes(arguments, before)]
            line = json.dumps([*answer, self.take_printed()])
        except PeerGoneError:
            raise
        except BaseException as error:  # noqa: BLE001 whatever a program raises is sent to the caller
            line = json.dumps(self._error_message(error))
        self._write(line)

    def _mutable_content(self, argument: Any) -> Any:
        return self.to_data(argument) if type(argument) in MUTABLE else None

    def result_data(self, call: Callable[..., Any], result: Any, arguments: list[Any]) -> Any:
        """Return the result of a function call as JSON data, or its position when it is one of the call's arguments."""
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
                arguments.append(to_data(argument, refuse))
            except (NotPlainError, RecursionError):
                arguments.append(None)
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 an exception of the program
            text = ""
        about = self.error_class(type(error))
        return ["raise", about, arguments, text, self.number_of(error), self.take_printed()]

    def _read_result(self, message: list[Any], arguments: Sequence[Any]) -> Any:
        """Return the result of a function call from the answer of the other process (program or judge).

        The changes that the call made to its arguments are applied first. Raises the exception that the call raised.
        """
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
            error = _make_error(error_class, decode(data, is_of_program=self.hears_program))
            vars(error).update(text=text, remote_number=number)
        except Exception as problem:  # whatever the reading raises, no test takes it for an exception of the program
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
            message = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            raise self._lose_peer("the other process has ended, or says too much") from error
        if not isinstance(message, list) or not message:
            raise self._lose_peer("the other process says what makes no sense")
        return message

    def _lose_peer(self, text: str) -> PeerGoneError:
        self.is_gone = True
        return PeerGoneError(text)


def is_library_error(kind: type) -> bool:
    """Return whether an exception class belongs to the standard library, so that program and judge both have it."""
    root, _, _ = kind.__module__.partition(".")
    return root in sys.stdlib_module_names or kind.__module__ == builtins.__name__


def replace_content(target: Any, content: Any) -> None:
    """Replace the content of a list, dict, set or bytearray by that of another object of its type."""
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
