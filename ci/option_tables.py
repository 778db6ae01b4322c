#!/usr/bin/env python3
"""Write the tables of docs/inventory.md: the plan's variables, the engine keys, and every role's options, each from its definition.

usage: ci/option_tables.py [--check]     (exit 1 when the page is stale)
"""
import argparse
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "inventory.md"
BEGIN, END = "<!-- {0}: ci/option_tables.py -->\n", "<!-- end of {0} -->\n"
sys.path.insert(0, str(ROOT / ".collections"))

from ansible_collections.infera.serving.plugins.module_utils import plan_engines, plan_options, sglang_args, sglang_keys  # noqa: E402


def cell(value) -> str:
    return " ".join(str(value).replace("|", "\\|").split())


def default(value) -> str:
    if value in (None, "", [], {}):
        return ""
    text = " ".join(str(value).split())
    return f"`{cell(text)}`" if len(text) <= 60 else "computed"


def grid(head, rows) -> str:
    return "\n".join(["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)] + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def deployment() -> str:
    rows, kinds = [], {"str": "text", "int": "whole number", "float": "number"}
    for option in plan_options.OPTIONS.values():
        kind = "one of " + ", ".join(option.choices) if option.choices else kinds.get(option.kind, option.kind)
        rows.append((f"`{option.name}`", kind, default(option.default), cell(option.text)))
    return grid(("variable", "type", "default", "what it is"), rows)


def special() -> dict:
    """{key: text} of the keys that are not a single flag, from the table in sglang_args' text."""
    out, names = {}, []
    for line in re.search(r"^=+ =+\n(.*?)^=+ =+", sglang_args.__doc__, re.S | re.M).group(1).splitlines():
        head, text = line[:22].strip(), line[23:].strip()
        if head:
            names = [name.strip() for name in head.split(",") if name.strip()]
            for name in names:
                out[name] = text
        elif names:
            for name in names:
                out[name] += " " + text
    return out


def engines() -> str:
    rows, texts = [], special()
    for key in plan_engines.SETTABLE:
        if key in sglang_keys.KEYS:
            known = sglang_keys.KEYS[key]
            rows.append((f"`{key}`", f"`{known.flag}`", cell(known.text)))
        else:
            rows.append((f"`{key}`", "", cell(texts.get(key, ""))))
    return grid(("key", "SGLang's flag", "what it is"), rows)


def unpublished() -> str:
    return grid(("key", "what SGLang does where it stays unset"), [(f"`{key}`", cell(text)) for key, text in sglang_keys.NOT_PUBLISHED.items()])


def roles() -> str:
    parts = []
    for path in sorted((ROOT / "roles").glob("[a-z]*/meta/argument_specs.yml")):
        spec, rows = yaml.safe_load(path.read_text())["argument_specs"], {}
        for entry in spec.values():
            for name, option in (entry.get("options") or {}).items():
                text = option.get("description", "")
                text = " ".join(text) if isinstance(text, list) else text
                shown = "required" if option.get("required") else default(option.get("default"))
                rows.setdefault(name, (f"`{name}`", option.get("type", "str"), shown, cell(re.sub(r"\b[VOMC]\(([^)]*)\)", r"`\1`", text))))
        if rows:
            title = f"### {path.parts[-3]}\n\n{spec.get('main', {}).get('short_description', '')}.\n\n"
            parts.append(title + grid(("variable", "type", "default", "what it is"), rows.values()))
    return "\n".join(parts)


TABLES = {"deployment variables": deployment, "engine keys": engines, "values that nobody published": unpublished, "role options": roles}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    args = parser.parse_args()
    old = new = PAGE.read_text()
    for name, make in TABLES.items():
        head, rest = new.split(BEGIN.format(name))
        new = head + BEGIN.format(name) + "\n" + make() + "\n" + END.format(name) + rest.split(END.format(name))[1]
    if new == old:
        return 0
    if args.check:
        print("docs/inventory.md: its tables are stale; run ci/option_tables.py", file=sys.stderr)
        return 1
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
