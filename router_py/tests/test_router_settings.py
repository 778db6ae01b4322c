"""The flags of infera-router: order of precedence, wrong values, help, and the generated pages."""

import logging
import pathlib
import subprocess
import sys

import pytest
from infera_router import cli
from infera_router.fleet.options import UsageError
from infera_router.settings import OPTIONS, Settings, option_set, read

ROOT = pathlib.Path(__file__).resolve().parents[2]
# §1.14 of the behaviour page, less what belongs to other backends (kubernetes, NATS, kvd, profiling, the Rust binary) or is said to be left out.
WANTED = {"--host", "--port", "--discovery-backend", "--etcd-endpoint", "--etcd-prefix", "--request-transport", "--router-policy",
          "--kv-event-transport", "--router-tokenizer-path", "--kv-overlap-weight", "--kv-prefill-overlap-weight", "--kv-decode-overlap-weight",
          "--request-max-retries", "--breaker-failure-threshold", "--breaker-cooldown-s", "--breaker-max-cooldown-s", "--decode-input-demand",
          "--decode-request-weight", "--prefill-abort", "--api-key-file", "--log-format", "--workers", "--session-affinity", "--drain-timeout",
          "--http-req-idle-timeout-s", "--lease-warn-s", "--max-body-bytes", "--max-concurrent-requests", "--prefill-drain-timeout"}
BAD = {"choice": "nonsense", "integer": "-1", "number": "nan", "seconds": "-3", "switch": "maybe", "file": "/does/not/exist", "text": "",
       "endpoint": "http://user:secret@x", "prefix": "no-slash"}


@pytest.fixture(autouse=True)
def loggers():
    """The command sets logging up; later tests want their own again."""
    root = logging.getLogger()
    kept, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = kept, level


def kind(option):
    return option.convert.__qualname__.split(".")[0]


def test_every_flag_of_the_specification_is_there():
    assert not WANTED - {option.flag for option in OPTIONS}


def test_help_shows_every_flag_with_its_variable_and_default():
    text = "".join(option_set().help().split())  # argparse breaks lines at hyphens, too
    for option in OPTIONS:
        assert option.flag in text and option.variable == "INFERA_" + option.dest.upper() and f"[{option.variable}" in text
        assert f"default{option.shown_default()}]" in text


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flag)
def test_a_wrong_value_is_named_with_its_option(option):
    bad = BAD[kind(option)]
    if bad == "" and kind(option) == "text":
        with pytest.raises(UsageError, match=f"{option.flag}: '' must not be empty"):
            read([option.flag, ""], {})
        return
    with pytest.raises(UsageError, match=f"{option.flag}: '{bad}' "):
        read([option.flag, bad], {})
    with pytest.raises(UsageError, match=f"{option.variable} .option {option.flag}.: '{bad}' "):
        read([], {option.variable: bad})


def test_flag_beats_variable_beats_default():
    assert read([], {}).port == 8000
    assert read([], {"INFERA_PORT": "9000"}).port == 9000
    assert read(["--port", "9001"], {"INFERA_PORT": "9000"}).port == 9001
    assert read([], {"INFERA_PORT": ""}).port == 8000
    # what a wrong variable says does not matter where a flag is given
    assert read(["--port", "9001"], {"INFERA_PORT": "x"}).port == 9001


def test_settings_do_not_change():
    settings = read([], {})
    with pytest.raises(AttributeError):
        settings.port = 1
    assert isinstance(settings, Settings)


@pytest.mark.parametrize(("argv", "named"), [
    (["--decode-request-weight", "1000"], "--decode-request-weight"),
    (["--tls-cert-file", __file__], "--tls-key-file"),
    (["--tls-key-file", __file__], "--tls-cert-file"),
    (["--metrics-auth", "on"], "--api-key-file"),
    (["--router-policy", "kv-aware"], "--router-tokenizer-path"),
    (["--frobnicate"], "--frobnicate"),
    (["--por", "1"], "--por"),
    (["--host", "not an address"], "--host"),
])
def test_the_command_exits_2_and_names_the_option(argv, named, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([*argv, *([] if "--host" in argv else ["--host", "127.0.0.1"])])
    assert end.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith("infera-router: error: ") and named in error[-1]


def test_an_unusable_key_file_exits_2(tmp_path, capsys):
    path = tmp_path / "keys"
    path.write_text("short\n")
    with pytest.raises(SystemExit) as end:
        cli.main(["--api-key-file", str(path), "--host", "127.0.0.1", "--port", "0"])
    assert end.value.code == 2 and "--api-key-file" in capsys.readouterr().err


def test_a_folder_without_a_tokenizer_exits_2_before_anything_listens(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("infera_router.process.listen.bind", lambda _settings: pytest.fail("the port was taken"))
    with pytest.raises(SystemExit) as end:
        cli.main(["--router-tokenizer-path", str(tmp_path)])
    assert end.value.code == 2
    assert f"--router-tokenizer-path: {tmp_path} has no tokenizer.json" in capsys.readouterr().err


def test_the_generated_pages_are_current():
    done = subprocess.run([sys.executable, str(ROOT / "ci" / "router_reference.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
