"""The test stages: what each runs, and its budget in minutes on two cores."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Step:
    """One command of a stage. With pytest=True argv are pytest's arguments. limit is in seconds."""

    name: str
    argv: tuple
    pytest: bool = False
    limit: int = 600
    env: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Stage:
    """Steps that run in order, `parallel` at a time."""

    budget: int
    steps: tuple
    parallel: int = 1


def tests(name: str, *argv: str, limit: int = 600, **env: str) -> Step:
    return Step(name, argv, pytest=True, limit=limit, env=env)


def command(name: str, *argv: str, limit: int = 600) -> Step:
    return Step(name, argv, limit=limit)


FAST = "not slow and not engine"

# These start engines of their own beside the deployment: a fleet of two prefills and two decode ranks does not fit into the budget of `make test`.
OWN_ENGINES = ("tests/e2e/test_25_router_engine.py", "tests/e2e/test_28_kv.py")

STAGES = {
    "check": Stage(3, (
        command("ansible-lint", "ansible-lint", "--offline"),
        tests("collection", "tests/unit"),
        tests("router-units", "router_py/tests", "-c", "router_py/pyproject.toml", "-m", FAST),
        command("yamllint", "yamllint", "-s", "."),
        command("ruff", "ruff", "check", "."),
        command("shellcheck", "sh", "ci/shellcheck.sh"),
        command("changelog", "antsibull-changelog", "lint"),
        command("collection-build", "sh", "ci/collection_build.sh"),
        command("wheel", "sh", "ci/wheel.sh"),
    ), parallel=2),
    "patches": Stage(4, (tests("sources", "tests/patches", "-m", "not engine", limit=900),)),
    "rails": Stage(3, (tests("mooncake", "tests/mooncake"),)),
    "router": Stage(8, (
        tests("router", "router_py/tests", "-c", "router_py/pyproject.toml", "-m", "slow and not engine",
              "--ignore=router_py/tests/policy", "--ignore=router_py/tests/emulator", "--ignore=router_py/tests/kv", limit=900),
    )),
    "decisions": Stage(6, (
        tests("decisions", "router_py/tests/policy", "router_py/tests/emulator", "router_py/tests/kv", "-c", "router_py/pyproject.toml",
              "-m", "slow and not engine", limit=900),
    )),
    # The deployment that this stage brings up is shared by the next ones; the last stage takes it down.
    "deployment": Stage(12, (
        tests("deployment", "tests/e2e", "-x", "--ignore=tests/e2e/test_90_clean.py", *(f"--ignore={f}" for f in OWN_ENGINES),
              "-m", "not rehearsal", limit=2400),
    )),
    "image": Stage(3, (tests("patched", "tests/patches", "-m", "engine", limit=1200),)),
    "verification": Stage(6, (tests("rehearsal", "tests/e2e/test_60_rehearsal.py", "-m", "rehearsal", limit=1200),)),
    "clean": Stage(2, (
        tests("clean", "tests/e2e/test_90_clean.py"),
        command("engine", "ansible-playbook", "ci/stop_engine.yml"),
    )),
}

# Not in `make test`: run by name. `engines` needs a deployment that runs (`make deploy`), `fleet` makes its own hosts.
BY_NAME = {
    "engines": Stage(15, (tests("engines", *OWN_ENGINES, limit=1800),)),
    # Four engines of two ranks start some twenty times: on two cores that holds in no budget of `make test`.
    "fleet": Stage(40, (tests("fleet", "tests/fleet", "-x", limit=3600),)),
}
