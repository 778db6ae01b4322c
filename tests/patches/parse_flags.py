#!/usr/bin/env python3
"""usage: parse_flags.py < JSON list of argument lists     parse each with the installed SGLang's own parser; print one result a list

A result is {"ok": true, "values": {...}} or {"ok": false, "error": "..."}. Parsing only: nothing is resolved, no device is asked.
"""
import argparse
import contextlib
import io
import json
import sys

from transformers import AutoConfig

# 0.5.18 registers names that a newer transformers has by itself; irrelevant to its parser.
register = AutoConfig.register
AutoConfig.register = staticmethod(lambda *args, **kwargs: register(*args, **{**kwargs, "exist_ok": True}))

from sglang.srt.server_args import ServerArgs  # noqa: E402

parser = argparse.ArgumentParser(prog="sglang.launch_server")
ServerArgs.add_cli_args(parser)
results = []
for argv in json.load(sys.stdin):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            values = vars(parser.parse_args(argv))
        unknown = [word.split("=")[0] for word in argv if word.startswith("--") and word.split("=")[0] not in parser._option_string_actions]
        plain = {name: value for name, value in values.items() if isinstance(value, (str, int, float, list, type(None)))}
        results.append({"ok": True, "abbreviated": unknown, "values": plain})
    except SystemExit:
        results.append({"ok": False, "error": said.getvalue().strip().splitlines()[-1]})
json.dump(results, sys.stdout)
