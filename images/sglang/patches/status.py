#!/usr/bin/env python3
"""Write STATUS.md from the manifest and a real run of the applier on the sources that it names.

usage: status.py --source 0.5.22=DIR --source 0.5.23=DIR [--check]
DIR holds the unpacked wheel (a site-packages folder). With --check nothing is written; exit status 1 when the page is not current.
"""
from __future__ import annotations

import argparse
import pathlib
import sys

import apply

PAGE = apply.HERE / "STATUS.md"
ROCM = "v0.5.22-rocm720-mi35x-20261018"

HEAD = """# Engine image: status of every patch

<!-- Made by status.py from manifest.json and a run of apply.py; do not edit. -->

**What this page was verified on: the sources of the PyPI wheels sglang {versions}, not the image.** The ROCm image
`lmsysorg/sglang-rocm:{rocm}` was not available where this was written, and no GPU. The image is three days younger than
the 0.5.22 wheel and twelve days older than 0.5.23; it may hold commits of in between. Every patch decides from the source that it finds, so
an image that differs is refused or reported, never patched blindly.

To verify again on the image, on a machine that has it:

```
ansible-playbook infera.serving.verify_image -e verify_image_base={rocm_image} -l BUILD_HOST
```

It runs the applier with `--check --json` in a throwaway container of the base, and compares the ledger with the last column of the table below.
Where they differ it says which row, why, and what to do; the image role refuses such a base as well, unless `image_allow_other_ledger` is true.

## Ledger

| patch | subject | {columns} | expected on {rocm} |
| --- | --- | {rules} | --- |
"""

DETAIL = """
## Evidence

What the applier found in each source. "baked" was also shown to change behaviour: for each patch a test drives the real function taken
from the wheel, which shows the fault on stock sources and not on patched ones (`tests/patches/test_behaviour.py`), on a CPU.

"""

TAIL = """
## Decisions and limits

* **HiCache staged write-back** is not applied on this base (option B). The two pools still disagree about the staged kernel on HIP, but indices
  are routed for each pool by its own answer, so the crash cannot happen; switching the kernel off would only slow write-back down. On
  sources without that routing the patch applies. The staged kernel on a real gfx950 was not tried.
* **Decode radix cache with speculation** is a no-op where upstream permits it (0.5.23). The 0.5.22 wheel still rejects every algorithm but DSPARK, so
  there the gate is opened with a warning. Which of the two the ROCm image holds is not known; both are expected. The published decodes use no radix cache.
* **MLA absorb configuration** leaves the choice to AITER. That the hand-built one is slow or wrong on MI355X was not shown.
* **KV metrics** never block the scheduler any more; the socket's queue stays unbounded while a reader is connected but absent.
* **DSA host copies**: the HIP-only `Indexer._should_skip_logits_computation` still waits for the device once per eager decode. Not covered.
* **Pipeline parallelism**: `models/glm5_next.py` has the fault of `pp-embed-dim` too (GLM-5-Next). Not covered.
* **DSA indexer rows**: models with a k-pool use `dsa_indexer_kpool.py`. Not covered.
* **Responses**: a whole call that arrives in one chunk gives its name only (qwen25), and a second call in the same chunk can be lost (glm47). The
  detector's own array is empty then, so nothing can be recovered.
* **Prefill memory access fault** and the other known issues are in docs/known-issues.md; no patch here addresses them.

## Older patches that are no longer needed

| older patch | where it went |
| --- | --- |
| DSA page-table rows, shape rule | re-cut as `dsa-page-table-rows`, with the real row count; its second site is upstream (`dsa-page-table-rows-trtllm`) |
| draft CUDA graph DP vote | already upstream (`draft-graph-dp-vote`) |
| HiCache ROCm host allocation | already upstream by another mechanism (`hicache-host-alloc`); ahead-of-time kernels are not in the wheel: not checked |
| Mooncake early-send wait event | transport half already upstream (`mooncake-early-send`); prefill half is `prefill-wait-event` |
| DSA indexer rows, HiCache staged write-back, DP-sync | updated for the new layout: `dsa-indexer-rows`, `hicache-write-back`, `dsa-host-syncs` |

## Mooncake

Built from source for the rocm flavour at one pinned commit (`MOONCAKE_REF`, default in `images/sglang/mooncake/build.sh`). Whether the source's own
image moved that pin is unknown. **The compile was not run**: it needs ROCm, the Mooncake repository and its submodules. Run here: shell syntax and
shellcheck, the source gates on small trees, the binary gates on PyPI's wheels (the ROCm wheel is refused: no transport routing), the yalantinglibs
step on a small CMake tree, and the `prebuilt` stage, whose image is labelled `mooncake=unverified`.
"""


def page(sources: dict) -> str:
    """The text of STATUS.md for {base: site-packages folder}."""
    manifest = apply.load_manifest()
    runs, digests = {}, {}
    for base, folder in sources.items():
        tree = apply.Tree(apply.find_package(str(folder)))
        ledger = apply.plan(manifest["patches"], tree)
        runs[base] = {entry["name"]: entry for entry in ledger}
        digests[base] = apply.digest(ledger, tree)
    out = [HEAD.format(versions=" and ".join(runs), rocm=ROCM, rocm_image=f"lmsysorg/sglang-rocm:{ROCM}", columns=" | ".join(f"wheel {base}" for base in runs),
                       rules=" | ".join("---" for _ in runs))]
    for row in manifest["patches"]:
        expected = " or ".join(apply.WORDS[word] for word in row["expected"][ROCM])
        cells = " | ".join(run[row["name"]]["status"] for run in runs.values())
        out.append(f"| `{row['name']}` | {row['subject']} | {cells} | {expected} |\n")
    out.append("\nDigest of the ledger (the label that the image role puts on an image): "
               + ", ".join(f"wheel {base} `{digest}`" for base, digest in digests.items()) + ".\n")
    out.append(DETAIL)
    for row in manifest["patches"]:
        out.append(f"* `{row['name']}` concerns {row['concerns']}.\n")
        for base, run in runs.items():
            out.append(f"  * {base}: {run[row['name']]['status']}: {run[row['name']]['evidence']}\n")
    out.append(TAIL)
    return "".join(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", action="append", required=True, metavar="BASE=DIR")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = page(dict(source.split("=", 1) for source in args.source))
    if args.check:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print(f"{PAGE.name}: {'current' if current else 'not current; run status.py without --check'}")
        return 0 if current else 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.name}: written, {pathlib.Path(PAGE).stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
