import argparse

import pytest
from infera_router.fleet import options as opt
from infera_router.fleet.etcd_options import ETCD_OPTIONS, etcd_settings
from infera_router.fleet.options import Option, OptionSet, UsageError

SET = OptionSet("prog", (
    Option("--weight", "w", opt.number(0), default=0.0),
    Option("--count", "c", opt.integer(1, 9), default=3),
    Option("--mode", "m", opt.choice("off", "on"), default="off", env="INFERA_OTHER"),
    Option("--name", "n", repeat=True, default=("a",)),
    Option("--flag", "f", opt.switch, default=False, bare=True, group="more"),
    Option("--quiet", "q", env=None),
), version="1")


def read(*argv, **environ):
    return SET.read(list(argv), environ)


def test_flag_beats_environment_beats_default():
    assert read().weight == 0.0
    assert read(INFERA_WEIGHT="2").weight == 2.0
    assert read("--weight", "3", INFERA_WEIGHT="2").weight == 3.0
    assert read("--weight=3", "--weight=4").weight == 4.0


def test_an_empty_variable_is_unset():
    assert read(INFERA_WEIGHT="", INFERA_NAME="", INFERA_FLAG="").weight == 0.0
    assert read(INFERA_NAME="").name == ("a",)


def test_repeated_flags_replace_the_variable_and_the_default():
    assert read("--name", "x", "--name", "y", INFERA_NAME="z").name == ("x", "y")
    assert read(INFERA_NAME="p, q,").name == ("p", "q")


def test_a_bare_switch():
    assert read("--flag").flag is True and read("--flag", "off").flag is False and read(INFERA_FLAG="1").flag is True


@pytest.mark.parametrize("argv, environ, words", [
    (["--weight", "-1"], {}, ["--weight", "-1"]), (["--weight", "nan"], {}, ["--weight", "nan"]), (["--weight", "inf"], {}, ["--weight"]),
    (["--weight", "much"], {}, ["--weight", "much", "number"]), (["--count", "1.5"], {}, ["--count", "1.5"]), (["--count", "10"], {}, ["9"]),
    (["--mode", "maybe"], {}, ["--mode", "maybe", "off, on"]), ([], {"INFERA_WEIGHT": "NaN"}, ["INFERA_WEIGHT", "--weight", "NaN"]),
    ([], {"INFERA_OTHER": "x"}, ["INFERA_OTHER", "--mode"]), (["--wei", "1"], {}, ["--wei"]), (["--nothing"], {}, ["--nothing"]),
    (["--weight"], {}, ["--weight"]), (["stray"], {}, ["stray"]),
])
def test_a_wrong_value_ends_with_2_and_one_line_that_names_it(argv, environ, words, capsys):
    with pytest.raises(SystemExit) as ended:
        SET.parse(argv, environ)
    line = capsys.readouterr().err
    assert ended.value.code == 2 and line.count("\n") == 1 and all(word in line for word in words), line


def test_the_environment_of_an_option_without_a_variable_is_ignored():
    assert read(INFERA_QUIET="x").quiet is None


def test_help_shows_variable_and_default(capsys):
    with pytest.raises(SystemExit) as ended:
        SET.parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "[INFERA_WEIGHT; default 0]" in text and "[INFERA_OTHER; default off]" in text and "[INFERA_NAME, comma-separated; default a]" in text


def test_the_reference_has_a_row_for_each_option():
    page = opt.reference(SET.options)
    assert all(f"`{option.flag}`" in page for option in SET.options) and "## More" in page


# ---- the etcd flags

def etcd(*argv, **environ):
    return etcd_settings(OptionSet("p", ETCD_OPTIONS).read(list(argv), environ))


def test_endpoints():
    assert etcd().endpoints == ("http://127.0.0.1:2379",)
    assert etcd("--etcd-endpoint", "a", "--etcd-endpoint", "b:1", "--etcd-endpoint", "https://c").endpoints == (
        "http://a:2379", "http://b:1", "https://c:2379")
    assert etcd(INFERA_ETCD_ENDPOINT="a,b:1,a").endpoints == ("http://a:2379", "http://b:1")
    assert etcd("--etcd-endpoint", "http://[fd00::1]").endpoints == ("http://[fd00::1]:2379",)


@pytest.mark.parametrize("argv, word", [
    (["--etcd-endpoint", "ftp://a"], "--etcd-endpoint"), (["--etcd-endpoint", "a:x"], "--etcd-endpoint"), (["--etcd-endpoint", ""], "--etcd-endpoint"),
    (["--etcd-endpoint", "http://a/p"], "--etcd-endpoint"), (["--etcd-endpoint", "http://u:p@a"], "--etcd-password-file"),
    (["--etcd-prefix", "workers"], "--etcd-prefix"), (["--etcd-user", "u"], "--etcd-password-file"),
    (["--etcd-password-file", "/dev/null"], "--etcd-user"), (["--etcd-ca-file", "/no/such"], "--etcd-ca-file"),
    (["--etcd-ca-file", "/dev/null"], "--etcd-ca-file"), (["--etcd-key-file", "/dev/null"], "--etcd-cert-file"),
    (["--etcd-cert-file", "/dev/null", "--etcd-key-file", "/dev/null"], "--etcd-cert-file"),
    (["--etcd-endpoint", "http://a", "--etcd-ca-file", "/dev/null"], "https"),
])
def test_etcd_flags_that_cannot_work_are_named(argv, word):
    with pytest.raises(UsageError) as caught:
        etcd(*argv)
    assert word in str(caught.value) and "\n" not in str(caught.value)


def test_every_etcd_flag_of_the_interface_has_its_variable():
    assert {option.flag: option.variable for option in ETCD_OPTIONS} == {
        f"--etcd-{name}": f"INFERA_ETCD_{name.upper().replace('-', '_')}"
        for name in ("endpoint", "prefix", "ca-file", "cert-file", "key-file", "user", "password-file")}


def test_a_value_is_converted_where_it_was_given_only():
    def never(_):
        raise AssertionError("defaults are not converted")

    assert OptionSet("p", (Option("--x", "x", never, default=argparse),)).read([], {}).x is argparse
