"""Record: a JSON object, so that its fields are described where they are written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


class Record:
    """A JSON object whose fields are attributes, too: `plan.estimated_step_seconds`, `plan["peak"]`."""

    __slots__ = ("_fields",)
    _fields: dict[str, Any]

    def __init__(self, fields: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_fields", {name: _record_of(value) for name, value in fields.items()})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_fields":  # copy and pickle ask before there are fields
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(f"{name}: expected one of {', '.join(self._fields)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: a record does not change")

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._fields == other._fields

    __hash__ = None  # type: ignore[assignment]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._fields]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.asdict(),)

    def __repr__(self) -> str:
        parts = (f"{name}={_short(value)}" for name, value in self._fields.items())
        return f"{type(self).__name__}({', '.join(parts)})"

    def asdict(self) -> dict[str, Any]:
        """The fields as dicts and lists."""
        return {name: _plain_of(value) for name, value in self._fields.items()}

    def json(self) -> str:
        """The fields as the program writes them with --json."""
        return json.dumps(self.asdict(), indent=1, ensure_ascii=False) + "\n"


def _record_of(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Record(value)
    return [_record_of(part) for part in value] if isinstance(value, list) else value


def _plain_of(value: Any) -> Any:
    if isinstance(value, Record):
        return value.asdict()
    return [_plain_of(part) for part in value] if isinstance(value, list) else value


def _short(value: Any) -> str:
    """Lists of records are long: their number is said."""
    if isinstance(value, list) and len(value) > 4:
        return f"[{len(value)} items]"
    return repr(value)
