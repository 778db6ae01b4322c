"""Keeps one worker record in etcd, whatever happens to etcd.

The registration holds the wanted record; its task makes etcd agree: grants a lease, puts, renews every third of the TTL, and starts over
when the lease is gone. The status only goes forward, and a draining that somebody else wrote into the record is taken over, so that no
heartbeat makes a draining worker active again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random

from infera_router.fleet.etcd import EtcdClient, EtcdError, LeaseNotFound
from infera_router.fleet.record import ACTIVE, DRAINING, RecordError, WorkerRecord, dump, parse

log = logging.getLogger(__name__)

RETRY_FIRST, RETRY_LAST = 0.2, 1.0
WITHDRAW_TIMEOUT = 1.5


class Registration:
    """One record under *prefix*. ``publish`` returns at once; the task does the talking."""

    def __init__(self, client: EtcdClient, prefix: str, ttl: int) -> None:
        self._client, self._prefix, self._ttl = client, prefix, ttl
        self._wanted: WorkerRecord | None = None
        self._written: WorkerRecord | None = None
        self._lease = 0
        self._changed = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._foreign = b""
        self._claimed = False

    @property
    def record(self) -> WorkerRecord | None:
        return self._wanted

    def publish(self, record: WorkerRecord) -> None:
        self._wanted = record
        self._changed.set()
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    def set_status(self, status: str) -> None:
        if self._wanted is not None and self._wanted.status != status:
            self.publish(dataclasses.replace(self._wanted, status=status))

    async def withdraw(self) -> bool:
        """Delete the record if it is ours; bounded. False: etcd did not answer, the lease will end it."""
        self._stopping = True
        self._changed.set()
        if self._task is None:
            return True
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._task, WITHDRAW_TIMEOUT / 3)
        try:
            return await asyncio.wait_for(self._delete(), WITHDRAW_TIMEOUT)
        except (EtcdError, asyncio.TimeoutError) as error:
            log.warning("the record could not be deleted (%s); it ends with its lease, at most %d s from now",
                        str(error) or "no answer", self._ttl)
            return False

    async def _delete(self) -> bool:
        assert self._wanted is not None
        key = self._prefix + self._wanted.worker_id
        while (item := await self._client.get(key)) is not None:
            if not self._ours(key, item.value):
                log.warning("the record %s belongs to another engine now; left alone", key)
                break
            if await self._client.delete_unchanged(key, item.mod_revision):
                break
        return True

    # ---- the task

    async def _run(self) -> None:
        delay = RETRY_FIRST
        warned = False
        while not self._stopping:
            self._changed.clear()
            try:
                await self._agree()
            except LeaseNotFound:
                log.warning("the lease is gone; registering again")
                self._lease, self._written = 0, None
                continue
            except EtcdError as error:
                (log.debug if warned else log.warning)("etcd: %s; trying again until it answers", error)
                warned = True
                await self._pause(delay * random.uniform(0.7, 1.0))
                delay = min(delay * 2, RETRY_LAST)
                continue
            except Exception:
                # This task must not end: a living engine would leave the fleet with its lease, for good.
                log.exception("the record could not be kept in etcd; registering again")
                self._lease, self._written = 0, None
                await self._pause(RETRY_LAST)
                continue
            if warned:
                log.info("etcd answers again")
            delay, warned = RETRY_FIRST, False
            await self._pause(self._ttl / 3)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    async def _agree(self) -> None:
        """Make etcd hold the wanted record under a living lease, unless a successor of ours took the address."""
        if self._lease and await self._client.keepalive(self._lease) <= 0:
            raise LeaseNotFound("expired")
        fresh = not self._lease
        if fresh:
            self._lease = await self._client.grant(self._ttl)
        assert self._wanted is not None
        key = self._prefix + self._wanted.worker_id
        if self._claimed and not await self._may_write(key, fresh):
            return
        wanted = self._wanted  # a draining may have been taken over
        if fresh or self._written != wanted:
            await self._client.put(key, dump(wanted), self._lease)
            self._written, self._claimed = wanted, True
            log.info("registered %s as %s", key, wanted.status)

    async def _may_write(self, key: str, fresh: bool) -> bool:
        """Look at what others did to the record since we wrote it; False when the address is another engine's."""
        item = await self._client.get(key)
        if item is None:
            if self._written is not None:
                log.warning("somebody deleted the record %s while its lease lives; writing it again (to take a worker out, drain it)", key)
            self._written = None
            return True
        if not self._ours(key, item.value):
            self._written = None
            if self._foreign != item.value:
                self._foreign = item.value
                log.error("another engine writes the record %s; two engines must not share an address", key)
            return False
        self._foreign = b""
        there = self._parsed(key, item.value)
        if there is None or there.generation != self._wanted.generation:
            self._written = None
        # A draining that we wrote ourselves is one that a signal has just ended.
        elif there.status == DRAINING and self._wanted.status == ACTIVE and (self._written is None or self._written.status != DRAINING):
            log.warning("the record %s was set to draining from outside; it stays so", key)
            self._wanted = dataclasses.replace(self._wanted, status=DRAINING)
            self._written = self._wanted
        return True

    def _ours(self, key: str, value: bytes) -> bool:
        """The record is this engine's, or one from before its start (a restored store), or garbage under its key."""
        there = self._parsed(key, value)
        return there is None or there.generation == self._wanted.generation or (there.started_at or 0) < (self._wanted.started_at or 0)

    def _parsed(self, key: str, value: bytes) -> WorkerRecord | None:
        try:
            return parse(key, value, self._prefix)
        except RecordError:
            return None
