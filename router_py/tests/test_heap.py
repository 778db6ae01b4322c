"""What a request gives back is there for the next one."""
import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, sys, threading
from infera_router import heap
kept = heap.keep() if sys.argv[1] == "keep" else None
def work():
    for _ in range(50):
        body = bytes(3_000_000)
        copy = body[1:]
        del body, copy
for _ in range(2):  # the first round grows the heap
    began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=work); thread.start(); thread.join()
    work()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began)
"""


def faults(how):
    kept, count = subprocess.run([sys.executable, "-c", COUNT, how], check=True, capture_output=True, text=True).stdout.split()
    return kept, int(count)


# On glibc a refusal is a failure, so only the C library's name decides.
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_blocks_of_a_request_are_not_faulted_in_again_by_the_next():
    kept, after = faults("keep")
    assert kept == "True"
    assert after < 1000, "100 times two blocks of 732 pages"
    assert faults("default")[1] > 10 * (after + 1)
