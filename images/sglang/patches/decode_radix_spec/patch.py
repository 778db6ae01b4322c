"""PD decode: the radix cache together with speculation.

Three shapes of one gate are known. It refused every algorithm; the 0.5.22 wheel refuses all but DSPARK, so EAGLE is still
refused there; later sources have no gate. The first two are replaced by a warning, the third needs nothing.

The gate also hid two release faults of the decode's KV offload. The published decodes use neither the radix cache nor the offload;
whoever combines this with KV offload is on new ground.
"""
from patchlib import UPSTREAM, Edit, Need, Patch, Settled

FILE = "srt/arg_groups/pd_disaggregation_hook.py"
ENABLED = ".disaggregation_decode_enable_radix_cache:\n"
HISPARSE = '''                    "--disaggregation-decode-enable-radix-cache is incompatible "
                    "with --enable-hisparse"
'''


def gate(config: str, condition: str) -> str:
    return f'''            if {config}.speculative_algorithm {condition}:
                raise ValueError(
                    "--disaggregation-decode-enable-radix-cache is incompatible "
                    "with speculative decoding "
                    f"(--speculative-algorithm {{{config}.speculative_algorithm}})"
                )
'''


def opened(config: str) -> str:
    return f'''            if {config}.speculative_algorithm is not None:
                logger.warning(
                    "infera: decode radix cache with --speculative-algorithm %s",
                    {config}.speculative_algorithm,
                )
'''


def settle(tree):
    blocks = [block.split("        else:\n", 1)[0] for block in (tree.get(FILE) or "").split(ENABLED)[1:]]
    blocks = [block for block in blocks if HISPARSE in block]
    if len(blocks) != 1 or "speculative" in blocks[0]:
        return None
    return Settled(UPSTREAM, f"{FILE} checks no speculative algorithm where the decode radix cache is enabled")


PATCH = Patch(
    edits=(Edit(FILE, tuple((gate(config, condition), opened(config)) for config, condition in (
        ("cfg", 'not in (None, "DSPARK")'), ("cfg", "is not None"), ("server_args", "is not None")))),),
    needs=(Need(FILE, ENABLED, "the block of the gate"), Need(FILE, HISPARSE, "the block of the gate", 1),
           Need(FILE, "logger = logging.getLogger(__name__)", "the warning's logger", 1)),
    markers={FILE: "infera: decode radix cache with --speculative-algorithm %s"},
    evidence="the decode radix cache warns about speculation instead of refusing it",
    settle=settle,
)
