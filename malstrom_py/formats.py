"""Formats of the values in brokers: Avro, Protobuf and JSON Schema, with or without a schema registry.

With a registry a value is framed as Confluent's clients do it: a zero byte, the id of the schema in four bytes, then
the message. The registry is asked once per schema and process.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from malstrom_py.errors import MalstromError, PlanError, SinkError, SourceError, imported, lasting
from malstrom_py.errors.text import describe_error, text_of
from malstrom_py.validation import checked_function

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["Avro", "Format", "JsonSchema", "Protobuf"]

_TRIES: Final = 3
_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.5
_MISS_S: Final = 30.0
_MISSES_MAX: Final = 1000
_HEADER_BYTES: Final = 5
_UNKNOWN: Final = {40401, 40402, 40403}
"""Errors of a registry that lacks a subject, a version or a schema. Any other 404 is of something else at its URL."""
_BUSY: Final = {408, 429}


class Format:
    """Encodes and decodes the values of records: ``value=`` of Kafka, NATS and Redis. Subclass it for others.

    ``decode`` raises any error for bytes that are not a value: the record is malformed. `SourceError` and `SinkError`
    fail the job. Copies are pickled to workers.

    >>> class Text(Format):
    ...     def decode(self, data): return data.decode()
    ...     def encode(self, value): return value.encode()
    >>> Text().decode(Text().encode("lamp"))
    'lamp'
    """

    def decode(self, data: bytes) -> Any:
        """Return the value of a record with these bytes."""
        raise NotImplementedError(f"{type(self).__name__} has no decode")

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value."""
        raise NotImplementedError(f"{type(self).__name__} has no encode")


def converter(value: object, what: str, of: str, from_format: Callable[[Format], Any]) -> Any:
    """Return ``value``, an argument called ``what`` that is a format or a function ``of`` something; None without one.

    ``from_format`` makes such a function of a format.
    """
    if isinstance(value, Format):
        return from_format(value)
    return None if value is None else checked_function(value, what, of)


class _Registry:
    """A client of a schema registry, for one kind of schema. A copy in another process asks again."""

    def __init__(self, url: str, kind: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise PlanError("registry is a URL, such as 'https://user:password@registry.example.com'")
        login = "" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        self._login = login and "Basic " + base64.b64encode(login.encode()).decode()
        self.place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
        self._kind = kind
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Any, Any] = {}
        self._missed: dict[Any, tuple[float, str]] = {}
        """What has no schema of this kind -> until when that is not asked again, and why."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in {"_lock", "_known", "_missed"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def reader(self, number: int, parse: Callable[[str, dict[str, str]], Any]) -> Any:
        """Return what ``parse`` makes of the schema ``number`` and those it refers to by name. ValueError: unknown."""

        def find() -> Any:
            answer = self._ask(f"/schemas/ids/{number}", SourceError)
            if answer.get("schemaType", "AVRO") != self._kind:
                raise ValueError(f"schema {number} is one of {answer['schemaType']}, not of {self._kind}")
            return parse(answer["schema"], self._referred(answer))

        return self._once(number, find)

    def register(self, subject: str, schema: str) -> int:
        """Return the id of ``schema`` under ``subject``, which gets it unless it has it."""
        body = {"schema": schema} if self._kind == "AVRO" else {"schema": schema, "schemaType": self._kind}
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return int(self._once(subject, lambda: self._ask(path, SinkError, body)["id"]))

    def _once(self, key: Any, find: Callable[[], Any]) -> Any:
        with self._lock:
            if key in self._known:
                return self._known[key]
            until_s, why = self._missed.get(key, (0.0, ""))
            if time.monotonic() < until_s:
                raise ValueError(why)
            try:
                self._known[key] = find()
            except ValueError as error:  # each record may have it, and the registry may get it
                if len(self._missed) >= _MISSES_MAX:
                    self._missed.clear()
                self._missed[key] = time.monotonic() + _MISS_S, text_of(error)
                raise
            return self._known[key]

    def _referred(self, answer: Mapping[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in answer.get("references", ()):
            path = f"/subjects/{quote(one['subject'], safe='')}/versions/{one['version']}"
            inner = self._ask(path, SourceError)
            found |= self._referred(inner) | {one["name"]: inner["schema"]}
        return found

    def _ask(self, path: str, failure: type[MalstromError], body: Any = None) -> Any:
        """Return the answer to a request, which is tried again while the registry cannot be reached or is broken."""
        headers = {"Accept": "application/json", "Content-Type": "application/vnd.schemaregistry.v1+json"}
        if self._login:
            headers["Authorization"] = self._login
        data = None if body is None else json.dumps(body).encode()
        why = ""
        for tries_left in reversed(range(_TRIES)):
            try:
                request = urllib.request.Request(f"{self.place}{path}", data, headers)
                with urllib.request.build_opener(_SafeRedirects).open(request, timeout=_TIMEOUT_S) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                code, message = _said(error)
                why = f"{error.code} {message}"
                if code in _UNKNOWN and body is None:
                    raise ValueError(f"the schema registry {self.place} does not have {path}") from None
                if error.code < 500 and error.code not in _BUSY:
                    raise lasting(failure(f"the schema registry {self.place} refuses {path}: {why}")) from None
            except (OSError, ValueError, http.client.HTTPException) as error:
                why = describe_error(error)
            if tries_left:
                time.sleep(_PAUSE_S)
        raise failure(f"the schema registry {self.place} cannot be used: {why}. Check its URL, and that it runs")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; the login is sent to the place of the registry only, or to its place over TLS."""

    def redirect_request(self, *args: Any, **options: Any) -> urllib.request.Request | None:
        made = super().redirect_request(*args, **options)
        if made is not None and not _is_same_place(urlsplit(args[0].full_url), urlsplit(made.full_url)):
            made.remove_header("Authorization")
        return made


def _is_same_place(one: SplitResult, other: SplitResult) -> bool:
    places = (one.scheme, one.port), (other.scheme, other.port)
    is_upgrade = places in ((("http", None), ("https", None)), (("http", 80), ("https", 443)))
    return one.hostname == other.hostname and (is_upgrade or places[0] == places[1])


def _said(error: urllib.error.HTTPError) -> tuple[Any, str]:
    """Return the number of the error, and what a registry says about a request that it refuses."""
    try:
        said = json.load(error)
        return said.get("error_code"), str(said["message"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, http.client.HTTPException):
        return None, str(error.reason)


class _Framed(Format):
    """A format whose messages may begin with the id of a schema in a registry."""

    _kind = ""

    def __init__(self, needs: str, registry: str | None, subject: str | None) -> None:
        self._what = f"formats.{type(self).__name__}"
        imported(needs, f"{self._what} needs {needs}", "formats")
        if subject is not None and registry is None:
            raise PlanError(f"{self._what}: subject is that of a registry: give registry= too")
        self._registry = None if registry is None else _Registry(registry, self._kind)
        self._subject = subject

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self._registry is None else f'registry={self._registry.place!r}'})"

    def decode(self, data: bytes) -> Any:
        """Return the value of a record with these bytes. ValueError: they are not of this format."""
        if self._registry is None:
            return self._read(data, None)
        if len(data) < _HEADER_BYTES or data[0]:
            raise ValueError("it does not begin with the id of a schema: was it written without a registry?")
        return self._read(data[_HEADER_BYTES:], int.from_bytes(data[1:_HEADER_BYTES], "big"))

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value. SinkError: the registry refuses the schema."""
        body = self._write(value)
        if self._registry is None:
            return body
        if self._subject is None:
            raise lasting(SinkError(f"{self._what}: values are written under a subject= of the registry: give it one"))
        return b"\0" + self._registry.register(self._subject, self._schema_text()).to_bytes(4, "big") + body

    def _read(self, data: bytes, number: int | None) -> Any:
        raise NotImplementedError

    def _write(self, value: Any) -> bytes:
        raise NotImplementedError

    def _schema_text(self) -> str:
        raise NotImplementedError


class Avro(_Framed):
    """Avro's binary encoding of values, as dicts: times as datetimes in UTC, decimals as Decimal.

    ``schema``: a schema as text or as plain types. Values are read into it, by the rules of Avro for schemas that
    changed, and written with it. With ``registry``, a URL, the schema that a value was written with comes from there,
    and ``schema`` may be left out for reading. ``subject``: where the registry keeps the schema of what is written, for
    instance ``"orders-value"``. Needs the extra ``formats``.

    PlanError: a wrong argument, or fastavro is not installed.

    >>> orders = Avro({"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]})
    >>> orders.decode(orders.encode({"item": "lamp"}))
    {'item': 'lamp'}
    """

    _kind = "AVRO"

    def __init__(self, schema: Any = None, *, registry: str | None = None, subject: str | None = None) -> None:
        super().__init__("fastavro", registry, subject)
        schema = _plain(schema, self._what, registry)
        self._text = json.dumps(schema)
        self._schema = None if schema is None else _parsed(schema, {}, self._what)
        self._own = None if schema is None else _parsed_to_read(self._text, {})

    def _read(self, data: bytes, number: int | None) -> Any:
        if self._registry is not None and number is not None:
            written, read = self._registry.reader(number, _parsed_to_read)
            wanted = self._schema
        else:
            assert self._own is not None
            (written, read), wanted = self._own, None
        if isinstance(written, list) and data[:1] and data[0] & 1:  # fastavro makes a list of the outermost union
            raise ValueError(_NO_CHOICE)
        stream = io.BytesIO(data)
        value = read(stream, written, wanted)
        if stream.read(1):
            raise ValueError("bytes follow its last field: it was written with another schema")
        return value

    def _write(self, value: Any) -> bytes:
        import fastavro
        import fastavro.validation

        if self._schema is None:
            raise lasting(SinkError(f"{self._what}: values are written with a schema: give it one"))
        # Else an int is written that readers cannot hold, and a float loses what follows its point.
        try:
            fastavro.validate(value, self._schema)
        except fastavro.validation.ValidationError as error:
            raise ValueError(f"it does not fit the schema: {text_of(error)}") from None
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, self._schema, value, strict=True)
        return stream.getvalue()

    def _schema_text(self) -> str:
        return self._text


class JsonSchema(_Framed):
    """JSON, checked against a JSON Schema when it is read and written.

    ``schema``: a schema as text or as plain types; with ``registry`` it may be left out for reading: values are checked
    against the schema that they were written with. Otherwise as `Avro`.

    PlanError: a wrong argument, or jsonschema is not installed.

    >>> orders = JsonSchema({"type": "object", "required": ["item"]})
    >>> orders.encode({"item": "lamp"})
    b'{"item":"lamp"}'
    """

    _kind = "JSON"

    def __init__(self, schema: Any = None, *, registry: str | None = None, subject: str | None = None) -> None:
        super().__init__("jsonschema", registry, subject)
        self._schema = _plain(schema, self._what, registry)
        self._check = None if self._schema is None else _validator(self._schema, self._what)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_check": None}  # pickle cannot take it

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._check = None if self._schema is None else _validator(self._schema, self._what)

    def _read(self, data: bytes, number: int | None) -> Any:
        check, value = self._check, json.loads(data, parse_constant=_refused)
        if check is None and self._registry is not None and number is not None:
            check = self._registry.reader(number, lambda text, inner: _validator(json.loads(text), None, inner))
        if check is not None:
            check.validate(value)
        return value

    def _write(self, value: Any) -> bytes:
        if self._check is None:
            raise lasting(SinkError(f"{self._what}: values are written with a schema: give it one"))
        self._check.validate(value)
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    def _schema_text(self) -> str:
        return json.dumps(self._schema)


class Protobuf(_Framed):
    """Messages of Protocol Buffers, as dicts: a name per field, enums as names, timestamps as datetimes in UTC.

    ``message``: a class that ``protoc`` has made. A field that a message may lack, and lacks, is None. Dicts and
    messages of the class are written; a field that is missing or None is not set. ``registry`` and ``subject`` as for
    `Avro`; a file that imports others is registered by hand first.

    PlanError: a wrong argument, or protobuf is not installed.

    >>> from google.protobuf.type_pb2 import Option
    >>> Protobuf(Option).decode(Protobuf(Option).encode({"name": "deprecated"}))
    {'name': 'deprecated', 'value': None}
    """

    _kind = "PROTOBUF"

    def __init__(self, message: type[Message], *, registry: str | None = None, subject: str | None = None) -> None:
        super().__init__("google.protobuf", registry, subject)
        imported("fastavro", f"{self._what} needs fastavro", "formats")
        if not hasattr(message, "DESCRIPTOR"):
            raise PlanError(f"{self._what}: message is a class that protoc has made, got {message!r}")
        self._message = message

    def _read(self, data: bytes, number: int | None) -> Any:
        if number is not None:
            path, data = _message_path(data)
            if path != self._path():
                raise ValueError(f"it is message {path} of its file, and {self._message.__name__} is {self._path()}")
        return _as_dict(self._message.FromString(data))

    def _write(self, value: Any) -> bytes:
        if isinstance(value, Mapping):
            value = self._message(**{name: item for name, item in value.items() if item is not None})
        elif not isinstance(value, self._message):
            raise TypeError(f"a {type(value).__name__} is neither a dict nor a {self._message.__name__}")
        body = bytes(value.SerializeToString())
        return body if self._registry is None else _packed_path(self._path()) + body

    def _path(self) -> list[int]:
        """Return the place of the message in its file: its number there, after those of the messages around it."""
        path: list[int] = []
        found: Any = self._message.DESCRIPTOR
        while found is not None:
            around = found.containing_type
            names = [one.name for one in around.nested_types] if around else list(found.file.message_types_by_name)
            path.insert(0, names.index(found.name))
            found = around
        return path

    def _schema_text(self) -> str:
        return base64.b64encode(self._message.DESCRIPTOR.file.serialized_pb).decode()


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _plain(schema: Any, what: str, registry: str | None) -> Any:
    """Return a schema in plain types, which a user gives in these or as text."""
    if schema is None and registry is None:
        raise PlanError(f"{what} needs a schema, or the registry= that has it")
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError:
        raise PlanError(f"{what}: schema is not JSON") from None


def _parsed(schema: Any, referred: Mapping[str, str], what: str | None) -> Any:
    """Return a schema of Avro as fastavro uses it. ``what``: the owner, if an error is the user's."""
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        named: dict[str, Any] = {}
        for text in referred.values():
            fastavro.parse_schema(json.loads(text), named_schemas=named)
        return fastavro.parse_schema(schema, named_schemas=named)
    except (SchemaParseException, UnknownType, LookupError, TypeError) as error:
        raise (ValueError if what is None else PlanError)(
            f"{what or 'its schema'}: no schema of Avro: {describe_error(error)}"
        ) from None


def _parsed_to_read(text: str, referred: Mapping[str, str]) -> tuple[Any, Callable[..., Any]]:
    """Return a schema as fastavro reads with it, and what reads values of it.

    fastavro's reader in C recurses for a type that holds itself, and hostile bytes of 10 KB overflow its stack, which
    ends the process. Its reader in Python raises RecursionError then.
    """
    import fastavro
    import fastavro._read_py

    schema = _strict(_parsed(json.loads(text), referred, None))
    reader: Callable[..., Any] = fastavro.schemaless_reader
    return schema, fastavro._read_py.schemaless_reader if _is_recursive(schema, frozenset()) else reader


_NO_CHOICE: Final = "it has a number of a symbol, or of a type in a union, that its schema does not have"


class _Symbols(dict[int, str]):
    """The symbols of an enum by number, of which fastavro would take negative ones from a list."""

    def __missing__(self, number: int) -> str:
        raise ValueError(_NO_CHOICE)


_item: Final = list.__getitem__


class _Union(list[Any]):
    """The types of a union, for fastavro, which takes negative numbers of them as Python does.

    Its reader in C adds the length to a negative number before it asks for the item; so there is none.
    """

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, number: Any) -> Any:
        if number < 0:
            raise ValueError(_NO_CHOICE)
        return _item(self, number)


def _strict(schema: Any) -> Any:
    """Return a parsed ``schema`` whose unions and symbols have no negative numbers. Its own parts are changed."""
    if isinstance(schema, list):
        return _Union(map(_strict, schema))
    if isinstance(schema, dict):
        for place in (schema, *schema.get("fields", ())):
            place.update({name: _strict(place[name]) for name in ("type", "items", "values") if name in place})
        if "symbols" in schema:
            schema["symbols"] = _Symbols(enumerate(schema["symbols"]))
    return schema


def _is_recursive(schema: Any, around: frozenset[str]) -> bool:
    """Return whether a named type in ``schema`` holds itself. ``around``: the names of the types around it."""
    if isinstance(schema, str):
        return schema in around
    if isinstance(schema, list):
        return any(_is_recursive(one, around) for one in schema)
    inner = around | {schema["name"]} if "name" in schema else around
    parts = [field["type"] for field in schema.get("fields", ())]
    parts += [schema[name] for name in ("items", "values") if name in schema]
    return any(_is_recursive(one, inner) for one in (*parts, *([schema["type"]] if "fields" not in schema else ())))


def _validator(schema: Any, what: str | None, referred: Mapping[str, str] | None = None) -> Any:
    from jsonschema import SchemaError, validators

    if referred:
        raise ValueError("its schema refers to others, which are not read: give schema= one that has all of it")
    try:
        kind = validators.validator_for(schema)
        kind.check_schema(schema)
    except (SchemaError, AttributeError, TypeError) as error:
        raise (ValueError if what is None else PlanError)(
            f"{what or 'its schema'}: no JSON Schema: {describe_error(error)}"
        ) from None
    return kind(schema)


def _message_path(data: bytes) -> tuple[list[int], bytes]:
    """Return the place of a message in its file, which its bytes begin with, and the rest of them.

    It is a count and as many numbers, as Avro writes a long; the count 0 means the first message.
    """
    import fastavro

    stream = io.BytesIO(data)
    try:
        count: Any = fastavro.schemaless_reader(stream, "long", None)
        path: list[Any] = [fastavro.schemaless_reader(stream, "long", None) for _ in range(count)]
    except EOFError:
        raise ValueError("it does not begin with the place of its message") from None
    return path or [0], stream.read()


def _packed_path(path: Sequence[int]) -> bytes:
    import fastavro

    stream = io.BytesIO()
    for number in [0] if path == [0] else [len(path), *path]:
        fastavro.schemaless_writer(stream, "long", number)
    return stream.getvalue()


def _as_dict(message: Any) -> Any:
    """Return a message in plain types."""
    name: str = message.DESCRIPTOR.full_name
    if name in {"google.protobuf.Timestamp", "google.protobuf.Duration"}:
        from datetime import UTC

        return message.ToDatetime(UTC) if name.endswith("Timestamp") else message.ToTimedelta()
    if name in {"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"}:
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(message)
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        entry = (
            field.message_type if field.message_type is not None and field.message_type.GetOptions().map_entry else None
        )
        if entry is not None:
            of = entry.fields_by_name["value"]
            found[field.name] = {key: _as_plain(of, item) for key, item in value.items()}
        elif field.is_repeated:
            found[field.name] = [_as_plain(field, item) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _as_plain(field, value)
    return found


def _as_plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _as_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value
