"""The command as a person meets it, as far as no pipeline is needed: a process of its own each time."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def refused(done: "subprocess.CompletedProcess[str]") -> str:
    """Check how an error must look, and return its text."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert 1 <= len(done.stderr.strip().splitlines()) <= 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr.removeprefix("error: ").strip()


def test_help_shows_everything_quickly(command: Command) -> None:
    seconds = []
    for word in ("--help", "-h", "--help"):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = command(word)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Of the processor, not of the clock: others may be running on it.
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert (done.returncode, done.stderr) == (0, "")
    for shown in (
        "minilm",
        "bert-base",
        "movie-reviews",
        "debug",
        "optimizer.lr=",
        "launch.num_processes=auto",
        "max_steps=",
    ):
        assert shown in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 130
    assert min(seconds) < 2, seconds


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['run.py', '--help']\n"
        "try: runpy.run_path(sys.argv_file, run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    ).replace("sys.argv_file", repr(str(ROOT / "src" / "run.py")))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert "LOADED" in done.stderr, done.stderr
    heavy = {"torch", "zenml", "transformers", "datasets", "numpy", "pyarrow", "sky"}
    assert not set(done.stderr.split()) & heavy


def test_help_shows_what_plugins_register(command: Command, module: str) -> None:
    done = command("--help", f"plugins=[{module}]")
    assert done.returncode == 0, done.stderr
    assert "A small model of mine." in done.stdout
    assert "plugins: cannot import 'nowhere'" in refused(command("--help", "plugins=[nowhere]"))


def test_version(command: Command) -> None:
    import skytune

    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"skytune {skytune.__version__}\n")


def test_cfg_prints_the_composed_configuration(command: Command, tmp_path: Path) -> None:
    import yaml

    done = command("--cfg", "optimizer=sgd", "+extra.my_key=1", "epochs=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    values = yaml.safe_load(done.stdout)
    assert (values["optimizer"]["name"], values["extra"], values["epochs"]) == ("sgd", {"my_key": 1}, 3)
    assert list(tmp_path.iterdir()) == []  # Hydra writes no folders


def test_plugins_from_the_environment_reach_the_config(command: Command, module: str) -> None:
    done = command("--cfg", "callback=mine", env={"SKYTUNE_PLUGINS": module})
    assert done.returncode == 0, done.stderr
    assert f"plugins:\n- {module}" in done.stdout
    assert "greeting: hello" in done.stdout


def test_presets_of_ones_own(command: Command, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tiny.yaml").write_text("# python src/run.py model=tiny\n# tiny\nname: /tiny  # a folder\n")
    done = command("--cfg", "--config-dir", str(tmp_path), "model=tiny")
    assert "name: /tiny" in done.stdout, done.stderr
    assert "--config-dir needs a folder" in refused(command("--cfg", "--config-dir"))
    assert "no such folder" in refused(command("--cfg", "--config-dir", str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["--nope"], "unknown option --nope: there are --help, --version, --cfg, --config-dir"),
        (["-x"], "unknown option -x"),
        (["--multirun", "epochs=1,2"], "unknown option --multirun"),
        (["epochs=1,2"], "'epochs=1,2' asks for several runs"),
        (
            ["data.train=/a,b.csv"],
            "'data.train=/a,b.csv' asks for several runs; run one value at a time, or quote a comma that is meant: "
            "\"data.train='/a,b.csv'\"",
        ),
        (["epcohs=1"], "unknown key 'epcohs': did you mean epochs?"),
        (["epochs=two"], "epochs='two': must be a whole number"),
        (["pipeline=evaluate"], "pipeline=evaluate needs checkpoint=PATH"),
    ],
)
def test_mistakes_end_with_one_line(command: Command, words: list[str], start: str) -> None:
    assert refused(command(*words)).startswith(start)


@pytest.mark.parametrize(
    "env",
    [
        {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
        {"ACCELERATE_MIXED_PRECISION": "no"},
    ],
    ids=["torchrun", "accelerate launch"],
)
def test_under_another_launcher_it_names_the_right_option(command: Command, env: dict[str, str]) -> None:
    message = refused(command("debug.traceback=false", env=env))
    for option in ("launch.num_processes=N", "launch.accelerate_config=FILE", "launch.nodes=N"):
        assert option in message


def test_debug_shows_the_traceback(command: Command) -> None:
    done = command("debug=", "epochs=0")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "epochs=0: must be at least 1" in done.stderr


def test_a_file_named_like_a_library_hides_nothing(command: Command, tmp_path: Path) -> None:
    """Case 3: `evaluate.py` and `datasets.py` beside the command and in the current folder."""
    copy, here, plugins = tmp_path / "src", tmp_path / "here", tmp_path / "plugins"
    for folder in (copy, here, plugins):
        folder.mkdir()
    shutil.copy(ROOT / "src" / "run.py", copy)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    # As in the checkout: the package lies beside the command.
    (copy / "skytune").symlink_to(ROOT / "src" / "skytune", target_is_directory=True)
    for folder in (copy, here):
        for name in ("evaluate.py", "datasets.py"):
            (folder / name).write_text("raise RuntimeError('the wrong file was imported')\n")
    (plugins / "which.py").write_text(
        "import importlib.util, sys\n"
        "for name in ('evaluate', 'datasets'): print(importlib.util.find_spec(name).origin, file=sys.stderr)\n"
    )
    path = os.pathsep.join(
        p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and ROOT not in Path(p).parents
    )
    env = {"PYTHONPATH": os.pathsep.join(filter(None, [str(plugins), path]))}
    done = command("--cfg", "plugins=[which]", file=copy / "run.py", cwd=here, env=env)
    assert done.returncode == 0, done.stderr
    found = done.stderr.split()
    assert len(found) == 2
    assert all(Path(file).name == "__init__.py" and tmp_path not in Path(file).parents for file in found), found


def test_a_loaded_dotenv_does_not_win_over_the_environment(tmp_path: Path, command: Command) -> None:
    """`.env` beside the checkout is read; what the shell has set stays."""
    copy = tmp_path / "src"
    copy.mkdir()
    shutil.copy(ROOT / "src" / "run.py", copy)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (copy / "skytune").symlink_to(ROOT / "src" / "skytune", target_is_directory=True)
    (tmp_path / ".env").write_text("FROM_FILE=file\nFROM_BOTH=file\n")
    env = {"FROM_BOTH": "shell", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = command("--cfg", "name='${oc.env:FROM_FILE}-${oc.env:FROM_BOTH}'", file=copy / "run.py", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("name: file-shell\n")


@pytest.mark.parametrize(
    "code",
    [
        "raise KeyboardInterrupt",
        # pydantic makes an error of its own of it
        "try:\n    signal.raise_signal(signal.SIGINT)\nexcept BaseException as e:\n    raise TypeError(repr(e))",
        # Python drops what is raised there; each import has one
        "one = type('A', (), {})()\nweakref.finalize(one, signal.raise_signal, 2)\ndel one\ntime.sleep(600)",
    ],
)
def test_an_interrupt_while_composing_is_130(tmp_path: Path, code: str) -> None:
    (tmp_path / "stopper.py").write_text(f"import signal, time, weakref\n{code}\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, str(ROOT / "src" / "run.py"), "--cfg", "plugins=[stopper]"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("interrupted: ") and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    ("end", "lines"),
    [
        ("raise UserError('the machine m could not be taken down')", ["error", "interrupted"]),
        (
            "raise UserError('the store cannot be opened') from TypeError('building:\\n KeyboardInterrupt: ')",
            ["interrupted"],
        ),
        ("raise TypeError('odd')", ["interrupted"]),
    ],
)
def test_what_we_say_after_an_interrupt_is_told_beside_it(end: str, lines: list[str]) -> None:
    """By a command that is not `run.py`, too."""
    code = (
        "import argparse, signal, sys\nfrom skytune.cli.command import run_command\n"
        "from skytune.config import UserError\n"
        "def run(words):\n"
        "    try:\n        signal.raise_signal(signal.SIGINT)\n    except KeyboardInterrupt:\n        pass\n"
        f"    {end}\n"
        "sys.exit(run_command(run, argparse.Namespace(traceback=False)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    told = [line.split(":")[0] for line in done.stderr.splitlines()]
    assert told == lines, done.stderr
