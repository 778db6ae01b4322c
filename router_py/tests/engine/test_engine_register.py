"""What keeps a record in etcd, against the real etcd."""

import asyncio

import pytest
from fleet.etcd_server import eventually, run
from infera_engine.register import Registration
from infera_router.fleet.etcd import EtcdClient, EtcdSettings
from infera_router.fleet.record import WorkerRecord


class Odd(EtcdClient):
    """A fault of ours: the next renewals get an answer that nobody foresaw."""

    faults = 0

    async def keepalive(self, lease):
        if self.faults:
            self.faults -= 1
            return [].get
        return await super().keepalive(lease)


@pytest.mark.parametrize("faults", [1, 2])
def test_an_answer_that_nobody_foresaw_does_not_take_the_engine_out(etcd, caplog, faults):
    async def main():
        client, direct = Odd(EtcdSettings((etcd.url,))), EtcdClient(EtcdSettings((etcd.url,)))
        registration = Registration(client, "/odd/", 2)
        registration.publish(WorkerRecord(worker_id="127.0.0.1:1", url="http://127.0.0.1:1", model_name="m", generation="g", started_at=1.0))
        await eventually(lambda: registration._written is not None)
        client.faults = faults
        await eventually(lambda: not client.faults and "registering again" in caplog.text, 4)
        # longer than the lease that was written first
        await asyncio.sleep(3)
        assert await direct.get("/odd/127.0.0.1:1") is not None
        assert await registration.withdraw() and await direct.get("/odd/127.0.0.1:1") is None
        await client.close()
        await direct.close()

    run(main())
