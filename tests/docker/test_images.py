"""What lies in docker/, .devcontainer/ and .github/, looked at without a container engine; what can be run is run."""

import ast
import fnmatch
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from skytune.config.secrets import looks_secret
from skytune.doctor.report import ZENML_PORT

ROOT = Path(__file__).resolve().parents[2]
FILES = ["docker/Dockerfile", "docker/Dockerfile.cpu"]
SERVING = "docker/Dockerfile.serve"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
each_image = pytest.mark.parametrize("file", [*FILES, SERVING], ids=["cuda", "cpu", "serve"])


@dataclass
class Step:
    word: str
    rest: str


def stages(file: str) -> list[list[Step]]:
    """Return the instructions of every stage."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / file).read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: list[list[Step]] = []
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.strip().partition(" ")
        assert word in {"FROM", "RUN", "COPY", "ARG", "ENV", "USER", "WORKDIR", "CMD"}, word
        if word == "FROM":
            found.append([])
        found[-1].append(Step(word, " ".join(rest.split())))
    return found


def copied(stage: list[Step]) -> list[str]:
    """Return what a stage takes from the checkout."""
    sources = [step.rest.split()[:-1] for step in stage if step.word == "COPY" and not step.rest.startswith("--from=")]
    return [source for those in sources for source in those]


def let_in(path: str) -> bool:
    """Whether .dockerignore lets a file in: the last line that fits decides."""
    answer = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip().removeprefix("!")
        if not pattern or pattern.startswith("#"):
            continue
        names = [path, *[str(parent) for parent in Path(path).parents if str(parent) != "."]]
        anywhere = pattern.removeprefix("**/") if pattern.startswith("**/") else None
        fits = any(fnmatch.fnmatch(name, pattern) for name in names)
        if fits or (anywhere and any(fnmatch.fnmatch(Path(name).name, anywhere) for name in names)):
            answer = line.strip().startswith("!")
    return answer


@each_image
def test_bases_are_pinned_to_a_version_and_its_digest(file: str) -> None:
    for stage in stages(file):
        base = stage[0].rest
        assert re.fullmatch(r"python:3\.1[12]\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}( AS \w+)?", base), base


@each_image
def test_it_does_not_run_as_root(file: str) -> None:
    last = stages(file)[-1]
    given = dict(step.rest.split("=", 1) for step in last if step.word == "ARG" and "=" in step.rest)
    users = [given.get(step.rest.removeprefix("$"), step.rest) for step in last if step.word == "USER"]
    assert users and users[-1] not in ("root", "0")
    assert any(f"useradd --create-home --uid 1000 {users[-1]}" in step.rest for step in last if step.word == "RUN")
    after = last[[step.word for step in last].index("USER") :]
    assert not [step for step in after if step.word in ("RUN", "COPY")]


@each_image
def test_everything_that_is_copied_is_there_and_let_in(file: str) -> None:
    for source in [source for stage in stages(file) for source in copied(stage)]:
        assert (ROOT / source).exists(), source
        inside = [source] if (ROOT / source).is_file() else [f"{source}/run.py", f"{source}/skytune/job.py"]
        assert all(let_in(path) for path in inside), source


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".env.production",
        ".git/config",
        ".venv/bin/python",
        "tests/conftest.py",
        "data.csv",
        "src/skytune/__pycache__/job.cpython-311.pyc",
        "src/.env",
        "src/skytune.egg-info/PKG-INFO",
        "docker/id_rsa",
    ],
)
def test_nothing_else_is_let_in(path: str) -> None:
    assert not let_in(path)


@each_image
def test_no_secret_is_asked_for_or_set(file: str) -> None:
    for step in [step for stage in stages(file) for step in stage]:
        if step.word in ("ARG", "ENV"):
            names = re.findall(r"(?:^|\s)([A-Za-z_]\w*)(?==|$)", step.rest)
            assert names and not [name for name in names if looks_secret(name)], step.rest
        if step.word == "COPY":
            assert not re.search(r"\.env|\.aws|\.netrc|id_rsa|(^|\s)\.(\s|$)", step.rest.rpartition(" ")[0]), step.rest


@each_image
def test_packages_are_pinned(file: str) -> None:
    commands = [
        part for stage in stages(file) for step in stage if step.word == "RUN" for part in step.rest.split("&&")
    ]
    installs = [part for part in commands if re.search(r"\bpip (install|wheel)\b", part)]
    assert len(installs) >= 4
    for part in installs:
        assert "--no-cache-dir" in part and re.search(r"constraint constraints\.txt|--no-deps", part), part
    for part in [part for part in commands if "apt-get install" in part]:
        assert "--no-install-recommends" in part


def test_cuda_comes_with_the_pins() -> None:
    pins = (ROOT / "constraints.txt").read_text()
    torch = next(text for text in PROJECT["optional-dependencies"]["train"] if text.startswith("torch=="))
    assert re.search(rf"^{re.escape(torch)}\b", pins, re.MULTILINE)
    assert re.search(r"^nvidia-cuda-runtime==13\.", pins, re.MULTILINE)
    assert "download.pytorch.org/whl/cpu" in (ROOT / "docker/Dockerfile.cpu").read_text()
    assert "pytorch.org" not in (ROOT / "docker/Dockerfile").read_text()


def test_both_images_differ_in_nothing_but_cuda() -> None:
    cuda, cpu = ([(step.word, step.rest) for stage in stages(file) for step in stage] for file in FILES)
    only_cuda, only_cpu = [step for step in cuda if step not in cpu], [step for step in cpu if step not in cuda]
    assert [step[0] for step in only_cuda] == ["RUN", "ENV"]  # g++, the variables of NVIDIA's runtime
    assert [step[0] for step in only_cpu] == ["ARG", "ENV"]  # the index, the variables without them


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_the_first_stage_builds_the_wheel_from_what_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "src"
    names = copied(stages(FILES[0])[0])
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *names],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    for name in filter(let_in, tracked):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--wheel-dir", str(tmp_path / "wheels"), "."]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=900)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (tmp_path / "wheels").glob("skytune-*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    assert {"skytune/training/worker.py", "skytune/report/page.css", "skytune/report/page.html.jinja"} <= set(inside)
    assert not [name for name in inside if name.startswith(("tests/", "run.py", "stack.py"))]


@pytest.mark.parametrize("extras", ["train", "train,orchestrate,aws,demo"])
def test_requirements_are_those_of_the_extras(extras: str) -> None:
    script = [sys.executable, "docker/requirements.py", extras]
    lines = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == [text for name in extras.split(",") for text in PROJECT["optional-dependencies"][name]]


def test_an_extra_that_is_not_there() -> None:
    script = [sys.executable, "docker/requirements.py", "training"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("no extra 'training'; there are train, orchestrate")


def test_conda_installs_the_same_pins() -> None:
    wanted = yaml.safe_load((ROOT / "docker/environment.yml").read_text())["dependencies"]
    (pip,) = [each["pip"] for each in wanted if isinstance(each, dict)]
    paths = dict(line.split(" ", 1) for line in pip)
    assert (ROOT / "docker" / paths["--constraint"]).resolve() == ROOT / "constraints.txt"
    where, extras = re.fullmatch(r"(.+)\[(.+)\]", paths["--editable"]).groups()  # type: ignore[union-attr]
    assert (ROOT / "docker" / where).resolve() == ROOT
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert "python=3.11" in wanted


def test_the_devcontainer_makes_what_the_makefile_makes() -> None:
    text = (ROOT / ".devcontainer/devcontainer.json").read_text()
    found = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    target = found["postCreateCommand"].removeprefix("make ")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert ZENML_PORT in found["forwardPorts"]
    assert found["remoteUser"] != "root"


def release() -> dict[str, object]:
    return dict(yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text()))


def test_a_release_publishes_nothing_unchecked() -> None:
    jobs = release()["jobs"]
    assert isinstance(jobs, dict)
    assert any(step.get("run") == ".ci/run" for step in jobs["check"]["steps"])
    assert os.access(ROOT / ".ci/run", os.X_OK)
    for name in set(jobs) - {"check"}:
        assert jobs[name]["needs"] == "check"
    assert [each["file"] for each in jobs["image"]["strategy"]["matrix"]["include"]] == FILES


def test_a_release_may_do_no_more_than_it_must() -> None:
    found = release()
    jobs = found["jobs"]
    assert isinstance(jobs, dict)
    assert found["permissions"] == {"contents": "read"}
    assert {name: job.get("permissions") for name, job in jobs.items()} == {
        "check": None,
        "wheel": {"contents": "write"},
        "image": {"contents": "read", "packages": "write"},
    }
    secrets = re.findall(r"secrets\.(\w+)", (ROOT / ".github/workflows/release.yml").read_text())
    assert set(secrets) == {"GITHUB_TOKEN"}
    for step in [step for job in jobs.values() for step in job["steps"]]:
        assert "${{ github.event" not in step.get("run", "")  # what others can write must not get into a shell
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step.get("uses", f"a/b@{'0' * 40}"))


@pytest.mark.parametrize(("tag", "code"), [(f"v{PROJECT['version']}", 0), ("v9.9.9", 1)], ids=["right", "wrong"])
def test_a_tag_that_is_not_the_version_is_refused(tag: str, code: int, tmp_path: Path) -> None:
    jobs = release()["jobs"]
    assert isinstance(jobs, dict)
    (script,) = [step["run"] for step in jobs["check"]["steps"] if "pyproject" in step.get("name", "")]
    (tmp_path / "python").symlink_to(sys.executable)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REF_NAME": tag}
    run = subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, env=env, capture_output=True, text=True)
    assert run.returncode == code, run.stdout + run.stderr


def test_what_is_imported_before_an_image_is_pushed_is_valid() -> None:
    jobs = release()["jobs"]
    assert isinstance(jobs, dict)
    (script,) = [step["run"] for step in jobs["image"]["steps"] if "skytune.training.worker" in step.get("run", "")]
    code = script.split("'")[1]
    ast.parse(code)
    names = re.findall(r"import os, ([\w.]+)", code)
    assert names and all((ROOT / "src" / (name.replace(".", "/") + ".py")).is_file() for name in names)
