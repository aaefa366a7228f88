"""Clients of Kafka: their options, their errors as safe texts, and questions about topics.

Rules: no error and no repr has the value of an option, which may be a password. A client for a question is closed after
it. Every question has a deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import MalstromError, PlanError, SourceError, imported
from malstrom_py.errors.text import redacts

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

LOG: Final = logging.getLogger("malstrom_py.connectors.kafka")
ANSWER_S: Final = 30.0
"""How long a broker has for the answer to a question."""

_DEFAULTS: Final = {"reconnect.backoff.ms": 10}
"""Of librdkafka it is 100, and each client waits for it as soon as it learns the names of the brokers."""

_TOPIC_MAX: Final = 249
_OWNED: Final = frozenset(
    (
        *("bootstrap.servers", "metadata.broker.list", "group.id", "group.instance.id", "group.protocol"),
        *("enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof"),
        *("enable.idempotence", "transactional.id", "acks", "request.required.acks", "delivery.report.only.error"),
        *("error_cb", "logger", "on_delivery", "stats_cb", "throttle_cb"),
    )
)
"""The options that guarantees of this package depend on."""


def kafka(what: str) -> Any:
    """Return the module ``confluent_kafka``; `PlanError` with the command that installs it."""
    return imported("confluent_kafka", f"{what} needs confluent-kafka", "kafka")


def checked_bootstrap(bootstrap: object, what: str) -> str:
    """Return ``bootstrap`` if it names brokers, else raise `PlanError`."""
    if not isinstance(bootstrap, str) or not bootstrap.strip():
        raise PlanError(f'{what}: bootstrap must name one or more brokers, such as "broker1:9092,broker2:9092"')
    return bootstrap


def checked_topic(topic: object, what: str) -> str:
    """Return ``topic`` if it is the name of a topic, else raise `PlanError`."""
    legal = isinstance(topic, str) and topic not in {"", ".", ".."} and len(topic) <= _TOPIC_MAX
    if not legal or not str(topic).replace(".", "").replace("_", "").replace("-", "").isalnum():
        raise PlanError(f"{what}: {topic!r} is not the name of a topic: use letters, digits, '.', '_' and '-'")
    return str(topic)


def checked_options(options: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
    """Return a copy of the options of librdkafka; `PlanError` for one that guarantees depend on."""
    options = dict(options or {})
    for name in options:
        if not isinstance(name, str):
            raise PlanError(f"{what}: the name of an option must be a str, got {type(name).__name__}")
        if name in _OWNED:
            raise PlanError(f"{what}: option {name!r} is set by {what} itself: leave it out")
    return options


@dataclass(frozen=True)
class Cluster:
    """The brokers of a source or sink, called ``what`` in errors, and how clients connect to them."""

    what: str
    bootstrap: str
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Cluster({self.bootstrap!r})"

    @property
    def api(self) -> Any:
        """The module ``confluent_kafka``."""
        return kafka(self.what)

    def made(
        self, kind: Callable[..., Any], settings: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> Any:
        """Return a new client; `PlanError` if an option is wrong. ``settings`` win over the user's options."""
        chosen = {**_DEFAULTS, **(defaults or {}), **self.options, "bootstrap.servers": self.bootstrap, **settings}
        chosen.setdefault("error_cb", lambda _error: None)  # librdkafka logs them too
        try:
            return kind(chosen, logger=LOG)
        except (self.api.KafkaException, TypeError, ValueError) as error:
            raise PlanError(
                f"{self.what}: librdkafka refuses an option: {self.safe(error)}. Correct options="
            ) from None

    def consumer(self, group: str, settings: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Consumer:
        """Return a new consumer that commits nothing and joins no group."""
        fixed = {"group.id": group, "enable.auto.commit": False, "enable.auto.offset.store": False}
        made: Consumer = self.made(self.api.Consumer, {**fixed, **settings}, defaults)
        return made

    @contextmanager
    def asking(self, error_class: type[MalstromError] = SourceError) -> Iterator[Consumer]:
        """Open a consumer for questions, whose errors become those of ``error_class``, and close it."""
        last: list[KafkaError] = []
        consumer = self.consumer("malstrom", {"error_cb": last.append})
        try:
            yield consumer
        except self.api.KafkaException as error:
            reason = "" if not last else f" ({self.safe(last[-1])})"
            raise error_class(
                f"{self.what}: {self.bootstrap} does not answer: {self.safe(error)}{reason}. Check that the brokers "
                f"run, and the options for security"
            ) from None
        finally:
            consumer.close()

    def safe(self, error: object) -> str:
        """Return the text of an error of librdkafka without the values of options."""
        text = text_of(error)
        for name, value in self.options.items():
            if name not in {"security.protocol", "sasl.mechanism", "sasl.mechanisms"} and len(str(value)) > 3:
                text = text.replace(str(value), "…")
        return text

    def partitions(self, consumer: Consumer, topic: str, error_class: type[MalstromError] = SourceError) -> list[int]:
        """Return the partitions of ``topic``; an error of ``error_class`` if it does not exist."""
        found = consumer.list_topics(topic, timeout=ANSWER_S).topics.get(topic)
        if found is None or found.error is not None or not found.partitions:
            reason = "" if found is None or found.error is None else f" ({self.safe(found.error)})"
            raise error_class(
                f"{self.what}: topic {topic!r} does not exist on {self.bootstrap}, or this user may not read "
                f"it{reason}: create it, or correct the name"
            )
        return sorted(found.partitions)


def text_of(error: object) -> str:
    """Return the code and text of an error of librdkafka."""
    inner = getattr(error, "args", None)
    found: Any = inner[0] if inner else error
    if hasattr(found, "code") and hasattr(found, "str"):
        return found.name() if redacts() else f"{found.name()}: {found.str()}"
    return type(error).__name__
