"""Limits the actors of Dramatiq: by actor, by argument, and of all workers together. A middleware.

    broker.add_middleware(ActorLimits(engine="redis://localhost:6379/1"))

    @dramatiq.actor(limit=limit("100/minute burst 10", key="user_id"))
    def send(user_id: int) -> None: ...

The option `limit` is a limit, its text, or a list of them. A message that must wait is enqueued again with its
exact delay, under the same id; the worker thread goes on with other messages. Retries are not consumed, and the
age of a message (max_age) counts on. Dramatiq logs each message that was put back as skipped.

task_limits.py says what becomes of messages that miss their place, find no slot, or never pass: those are rejected
without a retry, and their result is the reason.
"""

from __future__ import annotations

import inspect
import logging
from math import ceil
from typing import Any, NoReturn, Unpack

from headgate.enforcement.open_rulebook import Rules
from headgate.engines.port import Engine
from headgate.errors import HeadgateError, InvalidRule, RateLimited
from headgate.extras import require
from headgate.integrations.task_calls import TaskCall, TaskLimit, read_arguments
from headgate.integrations.task_limits import MAX_HOP_S, PutBack, StartTask, TaskLimits, WaitingTask
from headgate.integrations.task_settings import TaskSettings, read_limits

require("headgate.integrations.dramatiq", "dramatiq", "dramatiq")

import dramatiq  # noqa: E402
from dramatiq.middleware import Middleware, MiddlewareError, SkipMessage  # noqa: E402

__all__ = ["ActorLimits", "limit", "TaskCall"]

limit = TaskLimit

OPTION = "headgate"  # of a message that was put back

_log = logging.getLogger("headgate")


class InvalidActorLimit(InvalidRule, MiddlewareError):
    """A limit of an actor that is not valid. Dramatiq only lets errors of middleware reach the caller."""


class MessageRateLimited(SkipMessage):
    """The reason why a message was rejected: it can never pass its limits, or not within `timeout`."""


class ActorLimits(Middleware):
    """Limits actors by a rulebook, by limits in code, or both. TaskSettings lists the settings. Rules see the
    attributes task (the name of the actor), queue and argument.NAME."""

    def __init__(
        self, rules: Rules | None = None, engine: str | Engine | None = None, **settings: Unpack[TaskSettings]
    ) -> None:
        self.limits: TaskLimits = TaskLimits(rules, engine, **settings)
        self._limits_of: dict[str, tuple[TaskLimit, ...]] = {}
        self._signatures: dict[str, inspect.Signature] = {}
        self._started: dict[str, StartTask] = {}

    @property
    def actor_options(self) -> set[str]:
        """The options of an actor that this middleware reads."""
        return {"limit"}

    def before_declare_actor(self, broker: dramatiq.Broker, actor: dramatiq.Actor[Any, Any]) -> None:
        name = actor.actor_name
        try:
            limits = read_limits("limit", actor.options.get("limit", ()))
            for each in limits:
                each.check_arguments(actor.fn)
            self.limits.bind(name, limits)
        except HeadgateError as error:
            raise InvalidActorLimit(str(error)) from None
        self._limits_of[name], self._signatures[name] = limits, inspect.signature(actor.fn)

    def before_process_message(self, broker: dramatiq.Broker, message: dramatiq.broker.MessageProxy) -> None:
        try:
            answer = self._decide(broker, message)
            if isinstance(answer, PutBack):
                self._put_back(broker, message, answer.waiting)
        except RateLimited as error:
            _reject(message, str(error))
        except Exception as error:  # Dramatiq would log it, and go on without the limit
            _log.exception("headgate: a message of %s could not be decided.", message.actor_name)
            _reject(message, f"{type(error).__name__}: {error}")
        if isinstance(answer, PutBack):
            message.options["store_results"] = False  # of this delivery: it has no result yet
            raise SkipMessage("headgate: the message waits for its turn")
        self._started[message.message_id] = answer

    def _decide(self, broker: dramatiq.Broker, message: dramatiq.broker.MessageProxy) -> StartTask | PutBack:
        # A retry of this message is another call, and is charged.
        carried = message.options.pop(OPTION, None)
        name = message.actor_name
        signature = self._signatures.get(name)
        arguments = None if signature is None else read_arguments(signature, message.args, message.kwargs)
        if message.failed or arguments is None:
            return StartTask()
        call = TaskCall(name, arguments, message.queue_name, message)
        waiting = None if carried is None else WaitingTask.from_json(carried)
        bound = self.limits.bind(name, self._limits_of[name])
        return self.limits.decide(call, bound, waiting, _expires_at(broker, message))

    def _put_back(
        self, broker: dramatiq.Broker, message: dramatiq.broker.MessageProxy, waiting: WaitingTask
    ) -> None:
        delay_s = min(waiting.at - self.limits.now(), MAX_HOP_S)
        try:
            again: dramatiq.Message[Any] = message.copy(options={OPTION: waiting.to_json()})
            broker.enqueue(again, delay=max(0, ceil(delay_s * 1000)))
        except BaseException:
            self.limits.give_back_quietly(waiting)
            raise

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: dramatiq.broker.MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        started = self._started.pop(message.message_id, None)
        if started is not None:
            self.limits.finish(started, exception)

    def after_skip_message(self, broker: dramatiq.Broker, message: dramatiq.broker.MessageProxy) -> None:
        self.after_process_message(broker, message)
        carried = message.options.get(OPTION)
        if message.failed and carried is not None:  # another middleware has rejected it, such as AgeLimit
            self.limits.give_back_quietly(WaitingTask.from_json(carried))

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self.limits.close()


def _reject(message: dramatiq.broker.MessageProxy, reason: str) -> NoReturn:
    message.fail()
    raise MessageRateLimited(reason)


def _expires_at(broker: dramatiq.Broker, message: dramatiq.broker.MessageProxy) -> float | None:
    """Returns when a message reaches its age limit, in seconds since 1970; None if it has none."""
    options = broker.get_actor(message.actor_name).options
    limits = [each.max_age for each in broker.middleware if isinstance(each, dramatiq.middleware.AgeLimit)]
    max_age = message.options.get("max_age") or options.get("max_age") or (limits[0] if limits else None)
    return None if not max_age or not limits else (message.message_timestamp + max_age) / 1000
