"""The command `infera-emulator`: engines that are not engines, for tests and measurements only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

# subcommand -> module with `main(argv) -> int`, imported only when it is asked for
COMMANDS = {"faults": "infera_emulator.faults.cli", "balance": "infera_emulator.balance_cli"}


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] not in COMMANDS:
        names = "\n".join(f"  {name}" for name in COMMANDS)
        wants_help = bool(argv) and argv[0] in ("-h", "--help")
        print(f"usage: infera-emulator COMMAND [options]\n\ncommands:\n{names}\n\nNothing here is a real engine.",
              file=sys.stdout if wants_help else sys.stderr)
        return 0 if wants_help else 2
    return importlib.import_module(COMMANDS[argv[0]]).main(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
