"""One end of a Mooncake transfer between two hosts, run by the engine image's Python.

usage: fabric.py target HOST DEVICES BYTES
       fabric.py source HOST DEVICES BYTES SESSION ADDRESS REPEAT

The target offers a buffer, prints "ready SESSION ADDRESS" and waits until it is stopped. The source writes random bytes to it REPEAT times, reads them back
and prints one line of JSON: {"gb_s": written 10^9 bytes per second (best of REPEAT), "seconds": per write, "intact": what was read back is what was written}.
Host memory only: GPU memory is not touched.
"""
import ctypes
import json
import os
import sys
import time

import mooncake.engine as engine


def start(host, devices, size):
    transfer = engine.TransferEngine()
    if transfer.initialize(host, "P2PHANDSHAKE", "rdma", devices) != 0:
        sys.exit("Mooncake does not start on %s with the devices %r" % (host, devices))
    memory = ctypes.create_string_buffer(size)
    if transfer.register_memory(ctypes.addressof(memory), size) != 0:
        sys.exit("Mooncake cannot register %d bytes" % size)
    return transfer, memory


def main():
    role, host, devices, size = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    transfer, memory = start(host, devices, size)
    if role == "target":
        print("ready %s:%d %d" % (host, transfer.get_rpc_port(), ctypes.addressof(memory)), flush=True)
        while True:
            time.sleep(3600)
    session, remote, repeat = sys.argv[5], int(sys.argv[6]), int(sys.argv[7])
    data = os.urandom(size)
    ctypes.memmove(memory, data, size)
    seconds = []
    for _number in range(repeat):
        begin = time.monotonic()
        code = transfer.transfer_sync_write(session, ctypes.addressof(memory), remote, size)
        seconds.append(time.monotonic() - begin)
        if code != 0:
            sys.exit("the write to %s failed (%d)" % (session, code))
    ctypes.memset(memory, 0, size)
    if transfer.transfer_sync_read(session, ctypes.addressof(memory), remote, size) != 0:
        sys.exit("the read from %s failed" % session)
    print(json.dumps({"gb_s": round(size / min(seconds) / 1e9, 3), "seconds": [round(value, 4) for value in seconds], "intact": memory.raw[:size] == data}),
          flush=True)


if __name__ == "__main__":
    main()
