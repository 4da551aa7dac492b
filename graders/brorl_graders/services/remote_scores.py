"""Scores from services and judges over a network, where each question is asked only once.

A service's answer about a prompt and a text is kept. So equal texts of a large group, or of a prompt that is sampled
again, are one request, even while this request is still open.

A worker keeps the answers in memory and writes them to the run folder (`service_answers/`). A resumed run reads them
from there, and another run may replay them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from brorl_graders.base.errors import ConfigError, ServiceError
from brorl_graders.base.foreign import VAST, read_json, record_lines
from brorl_graders.base.settings import Endpoint, ServiceLimits
from brorl_graders.base.verdicts import Verdicts
from brorl_graders.services.service_client import ServiceClient
from brorl_graders.verifiers import services
from brorl_graders.verifiers.services import ServiceCall, shown_url

FOLDER = "service_answers"  # subfolder of a run folder
MAX_KEPT = 300  # longest reason in memory, in characters

log = logging.getLogger(__name__)

SHOWN_FAILURES = 20

Failure = ServiceError | ConfigError


class KnownAnswer(NamedTuple):
    """A service's earlier answer about a text: its score and reason."""

    score: float
    reason: str


class KnownAnswers:
    """A cache of services' answers by the hash of prompt and text, which keeps the `cache_size` answers used last."""

    def __init__(
        self,
        settings: ServiceLimits,
        folder: Path | None,
        worker: int,
    ) -> None:
        """Open the cache of services' answers, with those that are recorded in `folder` or at `settings.replay`.

        New answers are recorded in `folder`, in one file for each `worker`. Without a folder they are not recorded.
        Raises ConfigError when there is nothing to replay.
        """
        self.settings = settings
        self.answers: OrderedDict[bytes, KnownAnswer] = OrderedDict()  # answers by hash, least recently used first
        self._record = None
        if settings.replay is not None:
            self._load(_record_files(settings.replay))
        elif folder is not None and settings.record:
            folder.mkdir(parents=True, exist_ok=True)
            self._load(sorted(folder.glob("*.jsonl")))
            path = folder / f"worker_{worker}.jsonl"
            self._record = path.open("a", buffering=1, encoding="utf-8")

    def find(self, key: bytes) -> KnownAnswer | None:
        """Return the known answer of a scoring service for a hash of prompt and text, or None."""
        if key in self.answers:
            self.answers.move_to_end(key)
        return self.answers.get(key)

    def record(
        self,
        verifier: str,
        key: bytes,
        score: float,
        reason: str,
    ) -> None:
        """Store an answer of a scoring service in the cache and in the record file."""
        self._remember(key, KnownAnswer(score, reason[:MAX_KEPT]))
        if self._record is not None:
            row = {
                "key": key.hex(),
                "verifier": shown_url(verifier),
                "score": score,
                "reason": reason,
            }
            self._record.write(json.dumps(row) + "\n")

    def _remember(self, key: bytes, answer: KnownAnswer) -> None:
        self.answers[key] = answer
        self.answers.move_to_end(key)
        if self.settings.replay is not None:
            return
        if len(self.answers) > self.settings.cache_size:
            self.answers.popitem(last=False)

    def close(self) -> None:
        """Close the file in which services' answers are recorded."""
        if self._record is not None:
            self._record.close()

    def _load(self, paths: Sequence[Path]) -> None:
        for path in paths:
            for key, answer in _read_answers(path):
                self._remember(key, answer)


def _record_files(replay: str) -> list[Path]:
    """Return the files with recorded answers of scoring services that the path `replay` names.

    The path is a file, a folder of such files, or a run folder. Raises ConfigError when there are none.
    """
    path = Path(replay)
    if path.is_file():
        return [path]
    inside = path / FOLDER
    folder = inside if inside.is_dir() else path
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"rewards.services.replay={replay} holds no answers: set a run folder that has {FOLDER}/")
    return files


def _read_answers(path: Path) -> Iterator[tuple[bytes, KnownAnswer]]:
    """Yield the answers of scoring services in a record file with their hashes.

    Half-written lines, and those whose score no service may give, are left out with one warning.
    """
    num_left_out = 0
    for line in record_lines(path, VAST):
        try:
            row = read_json(line, most_bytes=len(line))
            key = bytes.fromhex(row["key"])
            score = services.checked_score(row["score"])
            reason = str(row.get("reason", ""))
        except (ValueError, TypeError, LookupError, AttributeError):
            num_left_out += 1
            continue
        yield key, KnownAnswer(score, reason[:MAX_KEPT])
    if num_left_out:
        log.warning("%s: left out %d damaged lines, or ones without a score from 0 to 1", path, num_left_out)


class ServiceScore(NamedTuple):
    """The result of asking a service about one text: a score, or the reason for a failure."""

    score: float | None  # score; None: the service failed
    reason: str = ""  # the service's reason for the score, or why it failed
    error: Failure | None = None  # error that ends the run


class ServiceItem(NamedTuple):
    """One text that a service is to score, with the hash of prompt and text."""

    key: bytes
    text: str


class RemoteScores:
    """A client of all services that a run's settings name, whose requests one thread sends.

    Many threads may call `judge`.
    """

    def __init__(
        self,
        settings: ServiceLimits,
        folder: Path | None = None,
        worker: int = 0,
    ) -> None:
        """Start the client of scoring services.

        Answers are recorded in `folder`, in one file for each `worker`. Without a folder they are not recorded. Raises
        ConfigError when there is nothing to replay.
        """
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._open: dict[bytes, asyncio.Future[ServiceScore]] = {}
        self._reported: Counter[str] = Counter()
        self._reported_s = 0.0
        self._lock = threading.Lock()
        self.known = KnownAnswers(settings, folder, worker)
        self._loop = asyncio.new_event_loop()
        self._thread = ThreadPoolExecutor(1, "services")
        self._running = self._thread.submit(self._loop.run_forever)
        self._client = self._wait_for(self._make_client())

    def judge(self, call: ServiceCall, texts: Sequence[str]) -> Verdicts:
        """Ask a scoring service or judge about each text, and return the scores with reasons.

        A score is None where the service failed and `rewards.services.on_failure` is `fail`. Raises ServiceError where
        it is `stop`, and ConfigError where an API key is missing.
        """
        work = self._judge(call, texts)
        scored: Verdicts = self._wait_for(work)
        return scored

    def take_usage(self) -> dict[str, float]:
        """Return counts and seconds of requests to scoring services since the last call of this method, by metric.

        The names of the metrics come without the prefix of their group.
        """
        with self._lock:
            now = self.counts + self._client.counts
            now_s = self._client.request_s
            used = {"request_s": now_s - self._reported_s}
            for name, num in now.items():
                used[name] = float(num - self._reported[name])
            self._reported = now
            self._reported_s = now_s
        return used

    def close(self) -> None:
        """Stop the thread that asks services, and close connections and record files."""
        self._wait_for(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._running.result()
        self._thread.shutdown()
        self.known.close()

    def _wait_for(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _make_client(self) -> ServiceClient:
        return ServiceClient(self.settings)

    async def _judge(self, call: ServiceCall, texts: Sequence[str]) -> Verdicts:
        items = _make_items(call, texts)
        scores: dict[bytes, ServiceScore] = {}
        waiting: dict[bytes, asyncio.Future[ServiceScore]] = {}
        new: list[ServiceItem] = []
        for item in items:
            if item is None:
                continue
            key = item.key
            if key in scores or key in waiting:
                continue
            known = self.known.find(key)
            if known is not None:
                scores[key] = ServiceScore(known.score, known.reason)
            elif key in self._open:
                waiting[key] = self._open[key]
            else:
                future = self._loop.create_future()
                self._open[key] = future
                waiting[key] = future
                new.append(item)
        size = 1 if call.endpoint.is_judge else self.settings.batch_size
        tasks = []
        for start in range(0, len(new), size):
            batch = new[start : start + size]
            asking = asyncio.create_task(self._ask(call, batch))
            asking.add_done_callback(partial(self._pass_error, batch))
            tasks.append(asking)
        for key, future in waiting.items():
            scores[key] = await future
        return _in_order(items, scores)

    async def _ask(self, call: ServiceCall, items: Sequence[ServiceItem]) -> None:
        """Send one request about these texts to a scoring service, and give each text its score or a failure."""
        try:
            reply = await self._request(call, items)
        except (ServiceError, ConfigError) as error:
            self._fail(items, error)
            return
        for index, item in enumerate(items):
            score = reply.scores[index]
            reason = reply.reasons[index]
            self.known.record(call.verifier, item.key, score, reason)
            self._settle(item, ServiceScore(score, reason))

    def _pass_error(self, items: Sequence[ServiceItem], asking: asyncio.Task[None]) -> None:
        """Pass an unexpected error of a request to all callers that wait for scores of its texts.

        They would wait forever otherwise.
        """
        if asking.cancelled():
            return
        error = asking.exception()
        if error is None:
            return
        for item in items:
            future = self._open.pop(item.key, None)
            if future is not None:
                future.set_exception(error)

    async def _request(self, call: ServiceCall, items: Sequence[ServiceItem]) -> services.ServiceReply:
        replay = self.settings.replay
        if replay is not None:
            raise ServiceError(f"rewards.services.replay={replay} has no answer to what was asked")
        self.counts["asked"] += len(items)
        payload = call.payload
        texts = [item.text for item in items]
        endpoint = call.endpoint
        headers = services.headers(endpoint)
        if endpoint.is_judge:
            [text] = texts
            url = services.judge_url(endpoint, "chat/completions")
            body = services.judge_request(endpoint, payload, call.prompt, text)
            read = partial(self._read_judge, endpoint)
        else:
            num = len(texts)
            url = endpoint.url
            body = services.service_request(payload, call.prompt, texts)
            read = partial(services.read_service_reply, endpoint, num)
        return await self._client.post(url, body, headers, read)

    def _read_judge(self, endpoint: Endpoint, reply: Any) -> services.ServiceReply:
        """Read the score in a judge's reply. The reply's tokens are counted with or without a score in it."""
        tokens = services.read_token_usage(reply)
        self.counts["prompt_tokens"] += tokens.read
        self.counts["completion_tokens"] += tokens.written
        return services.read_judge_reply(endpoint, reply)

    def _settle(self, item: ServiceItem, score: ServiceScore) -> None:
        """Give the score of a text to all callers that wait for it."""
        future = self._open.pop(item.key)
        future.set_result(score)

    def _fail(self, items: Sequence[ServiceItem], error: Failure) -> None:
        """Give a failure to each text of a failed request. Callers may ask about these texts again later."""
        self.counts["failed"] += len(items)
        stops = self.settings.on_failure == "stop"
        if isinstance(error, ConfigError):
            stops = True
        if not stops and self.counts["failed"] <= SHOWN_FAILURES:
            log.warning("a service failed; the response counts as failed: %s", error)
        ends_with = error if stops else None
        no_score = ServiceScore(None, str(error), ends_with)
        for item in items:
            self._settle(item, no_score)


def _make_items(call: ServiceCall, texts: Sequence[str]) -> list[ServiceItem | None]:
    """Return the part of each text that a scoring service scores, with its cache key, or None without such a part."""
    endpoint = call.endpoint
    context = [asdict(endpoint), call.payload, list(call.prompt)]
    beginning = json.dumps(context, sort_keys=True, default=str)
    prompt_hash = hashlib.blake2b(beginning.encode(), digest_size=16)
    items: list[ServiceItem | None] = []
    for text in texts:
        seen = services.select_scored_part(endpoint, text)
        if seen is None:
            items.append(None)
            continue
        digest = prompt_hash.copy()
        digest.update(seen.encode("utf-8", "surrogatepass"))
        key = digest.digest()
        items.append(ServiceItem(key, seen))
    return items


def _in_order(
    items: Sequence[ServiceItem | None],
    by_key: Mapping[bytes, ServiceScore],
) -> Verdicts:
    """Return the scores and reasons of a scoring service in the order of the scored texts.

    Raises the error of a failed service where settings say that it ends the run.
    """
    scores: list[float | None] = []
    reasons: dict[int, str] = {}
    for index, item in enumerate(items):
        score = ServiceScore(0.0)
        if item is not None:
            score = by_key[item.key]
        if score.error is not None:
            raise _as_run_error(score.error)
        if score.reason or score.score is None:
            reasons[index] = score.reason
        scores.append(score.score)
    return Verdicts(scores, reasons)


def _as_run_error(error: Failure) -> Failure:
    """Return the error that a user sees when a failed service ends the run."""
    if isinstance(error, ConfigError):
        return error
    return ServiceError(
        f"a verifier's service failed, and no reward is made up for it: {error}. The same command goes on from where "
        "this step began; rewards.services.on_failure=fail would count such responses as failed and go on"
    )
