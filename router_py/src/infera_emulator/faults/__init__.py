"""An engine that is not one: it answers SGLang's HTTP surface with made-up tokens and fails on demand.

It computes nothing. It exists for schedules that a real engine cannot be made to follow: a leg that is reset, hangs, answers 503, closes in
mid-chunk. What a request shall suffer stands in its body, as `"fault": {"prefill": "reset", "decode": "cut:3"}`, or is scripted per engine.
"""

from infera_emulator.faults.engine import Fault, FaultEngine, Rooms

__all__ = ["Fault", "FaultEngine", "Rooms"]
