"""One thread that follows the KV events of every (worker, rank) and keeps the view; zmq is imported when it starts.

Per stream three sockets: SUB for live batches, a monitor that tells when its connection breaks, and a fresh DEALER for each replay (so
that answers to an older request cannot be mistaken for the newest one's).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from . import events
from .pages import PageForm
from .stream import Stream
from .view import View, target_keys

if TYPE_CHECKING:
    from infera_router.fleet.pool import Snapshot
    from infera_router.fleet.record import WorkerRecord

log = logging.getLogger(__name__)

_TICK_MS = 200
_END = (-1).to_bytes(8, "big", signed=True)
# A SUB socket drops what exceeds its mark; the sizes here bound what a stalled router can hold, and a gap is repaired.
_LIVE_HWM = 100_000
_BATCHES_AT_ONCE = 64


def endpoint_of(base: str, rank: int) -> str:
    """`tcp://host:port` of a rank: rank r adds r to the port."""
    head, _, port = base.rpartition(":")
    return f"{head}:{int(port) + rank}"


def source_of(record: WorkerRecord, rank: int) -> tuple | None:
    """What a stream is bound to; a change of any part means another stream. None where the worker publishes nothing."""
    if not record.kv_events_endpoint:
        return None
    replay = endpoint_of(record.kv_replay_endpoint, rank) if record.kv_replay_endpoint else None
    size = record.page_size or record.kv_block_size or 1
    return (endpoint_of(record.kv_events_endpoint, rank), replay, record.kv_topic or "", record.generation, record.started_at, size)


class Subscriber:
    """`counts` holds what happened since the start: stored, removed, cleared, gaps, replays, publisher_restarts, undecodable, …"""

    def __init__(self, view: View, clock: Callable[[], float] = time.monotonic):
        self.view = view
        self.counts: Counter = view.counts
        self._clock = clock
        self._sources: dict[str, tuple] = {}
        self._commands: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._wake: Any = None

    def update(self, old: Snapshot | None, new: Snapshot) -> None:
        """Follow the fleet: new streams for new ranks, restarted workers and moved ports; the end of those that are gone."""
        wanted = {}
        for record in new.workers.values():
            for key, rank in target_keys(record):
                source = source_of(record, rank)
                if source is not None:
                    wanted[key] = source
        self.view.set_records(new.workers.values())
        for key in [key for key, source in self._sources.items() if wanted.get(key) != source]:
            del self._sources[key]
            self.view.drop(key)
            self._send(("close", key, None, None))
        for key, source in wanted.items():
            if key not in self._sources:
                self._sources[key] = source
                rank = self.view.open(key, PageForm(source[-1]))
                self._send(("open", key, source, rank))

    def close(self) -> None:
        """End the thread; waits at most a second for it."""
        if self._thread is not None:
            self._send(("stop", "", None, None))
            self._thread.join(1.0)
            self._thread = None

    def _send(self, command: tuple) -> None:
        if self._thread is None:
            if command[0] != "open":
                return
            self._start()
        self._commands.put(command)
        self._wake.send(b"\0")

    def _start(self) -> None:
        import socket

        self._wake, waker = socket.socketpair()
        self._thread = threading.Thread(target=_Worker(self, waker).run, name="kv-events", daemon=True)
        self._thread.start()


class _Channel:
    """The sockets of one stream; used by the subscriber's thread only."""

    def __init__(self, worker: _Worker, key: str, source: tuple, rank: Any):
        import zmq

        self.zmq, self.worker, self.key, self.rank = zmq, worker, key, rank
        endpoint, self.replay_endpoint, self.topic, *_ = source
        context = worker.context
        self.sub = context.socket(zmq.SUB)
        self.sub.set_hwm(_LIVE_HWM)
        self.sub.setsockopt(zmq.LINGER, 0)
        self.sub.setsockopt(zmq.RECONNECT_IVL, 100)
        self.sub.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        if "[" in endpoint:
            self.sub.setsockopt(zmq.IPV6, 1)
        self.sub.setsockopt(zmq.SUBSCRIBE, self.topic.encode())
        self.monitor = self.sub.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self.dealer: Any = None
        self.stream = Stream(self._apply, rank.clear, self._show, self._request if self.replay_endpoint else None, worker.counts)
        worker.poller.register(self.sub, zmq.POLLIN)
        worker.poller.register(self.monitor, zmq.POLLIN)
        worker.by_socket[self.sub] = (self, self._on_live)
        worker.by_socket[self.monitor] = (self, self._on_monitor)
        self.sub.connect(endpoint)
        self.stream.start(worker.clock())

    def close(self) -> None:
        self._end_replay()
        self.sub.disable_monitor()
        for socket in (self.monitor, self.sub):
            self.worker.forget(socket)
        self.rank.clear()

    def _show(self, shown: bool) -> None:
        self.rank.shown = shown

    def _apply(self, payload: bytes) -> None:
        try:
            found, unknown = events.decode(payload)
        except (msgspec.DecodeError, ValueError) as exc:
            self.worker.counts["undecodable"] += 1
            log.warning("%s: a KV event batch could not be decoded: %s", self.key, exc)
            return
        if unknown:
            self.worker.counts["unknown_events"] += unknown
        self.rank.apply(found)

    def _end_replay(self) -> None:
        if self.dealer is not None:
            self.worker.forget(self.dealer)
            self.dealer = None

    def _request(self, sequence: int) -> None:
        zmq = self.zmq
        self._end_replay()
        self.dealer = self.worker.context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.LINGER, 0)
        self.dealer.setsockopt(zmq.RCVHWM, 0)
        if "[" in self.replay_endpoint:
            self.dealer.setsockopt(zmq.IPV6, 1)
        self.worker.poller.register(self.dealer, zmq.POLLIN)
        self.worker.by_socket[self.dealer] = (self, self._on_replay)
        self.dealer.connect(self.replay_endpoint)
        self.dealer.send_multipart([b"", sequence.to_bytes(8, "big")])

    def _frames(self, socket: Any):
        for _ in range(_BATCHES_AT_ONCE):
            try:
                yield socket.recv_multipart(self.zmq.NOBLOCK)
            except self.zmq.Again:
                return

    def _on_live(self) -> bool:
        """Take what has come; False when nothing had."""
        some = False
        for frames in self._frames(self.sub):
            some = True
            if len(frames) == 3 and len(frames[1]) == 8:
                self.stream.live(int.from_bytes(frames[1], "big"), frames[2], self.worker.clock())
            else:
                self.worker.counts["undecodable"] += 1
        return some

    def _on_replay(self) -> None:
        dealer = self.dealer
        for frames in self._frames(dealer):
            # [empty, topic, sequence, payload], or without the topic from older publishers.
            if len(frames) < 3 or len(frames[-2]) != 8:
                self.worker.counts["undecodable"] += 1
            elif frames[-2] == _END:
                self._end_replay()
                self.stream.replay_ended(self.worker.clock())
            else:
                self.stream.replayed(int.from_bytes(frames[-2], "big"), frames[-1], self.worker.clock())
            if self.dealer is not dealer:
                return

    def _on_monitor(self) -> None:
        from zmq.utils.monitor import parse_monitor_message

        for frames in self._frames(self.monitor):
            event = parse_monitor_message(frames)["event"]
            if event == self.zmq.EVENT_DISCONNECTED:
                log.warning("%s: the KV event connection broke; its pages give no hits until it is back", self.key)
                # What is still queued came over the old connection; the next one is at least a reconnect interval away.
                while self._on_live():
                    pass
                self.stream.disconnected(self.worker.clock())
            elif event == self.zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.stream.connected(self.worker.clock())


class _Worker:
    """The thread's own state."""

    def __init__(self, owner: Subscriber, waker: Any):
        self.owner, self.waker = owner, waker
        self.counts, self.clock = owner.counts, owner._clock
        self.by_socket: dict[Any, tuple[_Channel, Callable[[], object]]] = {}
        self.channels: dict[str, _Channel] = {}
        self.context: Any = None
        self.poller: Any = None

    def forget(self, socket: Any) -> None:
        self.poller.unregister(socket)
        del self.by_socket[socket]
        socket.close(0)

    def run(self) -> None:
        import zmq

        self.context = zmq.Context(io_threads=1)
        self.poller = zmq.Poller()
        self.poller.register(self.waker, zmq.POLLIN)
        try:
            ticked = self.clock()
            while True:
                for socket, _ in self.poller.poll(_TICK_MS):
                    if socket == self.waker.fileno():
                        self.waker.recv(4096)
                        if not self._obey():
                            return
                    elif socket in self.by_socket:
                        self._guarded(*self.by_socket[socket])
                now = self.clock()
                if now - ticked >= _TICK_MS / 1000:
                    ticked = now
                    for channel in self.channels.values():
                        self._guarded(channel, lambda stream=channel.stream, at=now: stream.tick(at))
        finally:
            for channel in self.channels.values():
                channel.close()
            self.context.destroy(0)

    def _guarded(self, channel: _Channel, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:
            self.counts["errors"] += 1
            log.exception("%s: following its KV events failed", channel.key)

    def _obey(self) -> bool:
        """Take over changed streams; False when the thread is to end."""
        while True:
            try:
                kind, key, source, rank = self.owner._commands.get_nowait()
            except queue.Empty:
                return True
            if kind == "stop":
                return False
            channel = self.channels.pop(key, None)
            if channel is not None:
                channel.close()
            if kind == "open":
                try:
                    self.channels[key] = _Channel(self, key, source, rank)
                except Exception as exc:
                    self.counts["errors"] += 1
                    log.error("%s: its KV events cannot be followed at %s: %s", key, source[0], exc)
