"""Documentation is checked like code: paths, keys, presets, commands, make targets and links of every Markdown file."""

import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skytune.cli.main import _options
from skytune.config import ConfigError
from skytune.config.cli_grammar import SUGAR
from skytune.config.compose import compose_run
from skytune.config.help import field_type, presets
from skytune.config.targets import registry

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
PAGES = sorted(
    path
    for pattern in ("*.md", "[a-z]*/**/*.md")
    for path in ROOT.glob(pattern)
    if not {"build", "dist"} & set(path.relative_to(ROOT).parts)
)
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
TOP = ("src", "tests", "configs", "docs", "examples", "benchmarks", "tools", "docker", ".ci", ".github")
PAST = ("CHANGELOG.md",)
"""They name keys and files that are gone."""

OWN = {"src/my_task.py", "configs/GROUP/", "my/configs"}
"""Files that a reader makes."""

STAND_INS = {"K": "1", "FILE": "file", "PATH": "path/to/model", "JOBDIR": "job", "NAME": "aws", "FOLDER": "folder"}
"""Words for which a reader puts something in."""


def code(text: str) -> Iterator[tuple[str, str]]:
    """Yield the code of a page: its kind (`span`, `block`, or a fence's language) and a line or a span of it."""
    fence: str | None = None
    before = begun = ""
    for line in text.splitlines():
        indented = line.startswith("    ") and (not before.strip() or before.startswith("    "))
        before = line
        if line.startswith("```"):
            fence = (line[3:].strip() or "text") if fence is None else None
        elif fence is None and not indented:
            yield from (("span", span.replace("\\|", "|")) for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", line))
        elif line.endswith("\\") and fence != "python":
            begun += line.strip().removesuffix("\\")
        else:
            yield fence or "block", begun + (line if fence == "python" else line.strip())
            begun = ""


def without_comment(line: str) -> str:
    return re.split(r"\s+#\s", line)[0].strip()


def commands(page: Path, program: str) -> list[str]:
    """Return what a page says behind `python PROGRAM`, command by command."""
    found = [
        without_comment(line).partition(f"python {program}")[2]
        for kind, line in code(page.read_text(encoding="utf-8"))
        if kind != "python" and f"python {program}" in line
    ]
    return [re.sub(r"\s{2,}[a-z].*", "", words).strip() for words in found]  # two blanks: a remark


def words_of(command: str) -> list[str]:
    words = [word for word in shlex.split(command) if word not in ("...", "…")]
    return [re.sub(r"\b[A-Z]+\b", lambda m: STAND_INS.get(m[0], m[0]), word) for word in words]


@cache
def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem + "_of_documentation", ROOT / path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(found)
    sys.path[:] = before
    return found


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of somebody who followed the pages: `my_task.py` of the README, presets, the examples on the path."""
    folder = tmp_path_factory.mktemp("reader")
    lines = [line for kind, line in code((ROOT / "README.md").read_text(encoding="utf-8")) if kind == "python"]
    start = next(number for number, line in enumerate(lines) if "Dataset" in line)
    (folder / "my_task.py").write_text("\n".join(lines[start:]) + "\n")
    (folder / "my" / "configs" / "model").mkdir(parents=True)
    (folder / "my" / "configs" / "model" / "large.yaml").write_text("name: some/model  # a model\n")
    known, path = dict(registry), list(sys.path)
    sys.path += [str(folder), str(ROOT / "examples")]
    yield folder
    sys.path[:] = path
    registry.clear()
    registry.update(known)
    for name in ("my_task", *(file.stem for file in (ROOT / "examples").glob("*.py"))):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    dead = [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
        if not re.match(r"[a-z]+:", target) and not (page.parent / target.partition("#")[0]).exists()
    ]
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_named_paths_exist(page: Path) -> None:
    if page.name in PAST:
        return
    start = "|".join(map(re.escape, TOP))
    absent = set()
    for _, line in code(page.read_text(encoding="utf-8")):
        for path in re.findall(rf"(?<![\w./~-])((?:{start})/[\w./*{{}},-]*)", line):
            named = path.rstrip(".,")
            if named in OWN or "{" in named or (ROOT / named).exists():
                continue
            if "*" not in named or not list(ROOT.glob(named)):
                absent.add(named)
    assert absent == set()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {
        target
        for kind, line in code(page.read_text(encoding="utf-8"))
        if kind in ("span", "block")
        for target in re.findall(r"^make ([a-z-]+)", without_comment(line))
    }
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_keys_and_presets_in_the_text_exist(page: Path, reader: Path) -> None:
    if page.name in PAST or "results" in page.parts:
        return
    for example in (ROOT / "examples").glob("*.py"):
        importlib.import_module(example.stem)
    groups = presets(CONFIGS, reader / "my" / "configs")
    wrong = []
    for kind, span in code(page.read_text(encoding="utf-8")):
        if kind != "span" or "python " in span:
            continue
        try:
            words = shlex.split(span)
        except ValueError:
            words = span.split()
        for word in words:
            match = re.fullmatch(r"[+~]?([a-z_]+(?:\.[A-Za-z_0-9]+)*)=(.*)", word, flags=re.DOTALL)
            if match and not known(match[1], match[2], groups):
                wrong.append(word)
    assert wrong == []


def known(key: str, value: str, groups: dict[str, dict[str, str]]) -> bool:
    """Whether there is such a key, and, where it is a group's name, such a preset."""
    if key in groups:
        return value in groups[key] or value in ("", "null") or bool(re.search(r"[A-Z.]", value))
    parameter = not value and "." not in key  # Python's, as in `lr=`
    return parameter or key in SUGAR or key in ("checkpoint", "stage", "promote") or is_key(key)


@cache
def is_key(key: str) -> bool:
    try:
        field_type(key)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_compose(page: Path, reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in PAST:
        return
    monkeypatch.chdir(reader)
    for command in commands(page, "src/run.py"):
        compose(command)


@cache
def compose(command: str) -> None:
    """Compose the words of a command, in the reader's folder."""
    _, words, folder = _options(words_of(command))
    compose_run(CONFIGS, words, folder)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_of_the_other_programs_are_read(page: Path) -> None:
    for program in ("src/stack.py", "src/runs.py", "src/serve.py"):
        for command in dict.fromkeys(commands(page, program)):
            try:
                if command:
                    module(program).parser().parse_args(words_of(command))
            except SystemExit as end:
                assert end.code == 0, command


def test_tables_of_own_things_compose(reader: Path) -> None:
    """Of `docs/extending.md`: what stands in a row follows `python src/run.py`."""
    rows = re.findall(r"^\| .* \| `(.*)` \| `(.*)` \|$", (ROOT / "docs" / "extending.md").read_text(), re.MULTILINE)
    assert len(rows) == 6
    for row in rows:
        for words in row:
            compose_run(CONFIGS, shlex.split(words))


EVERYDAY = {
    "": "pipelines/test_end_to_end.py::test_default_command",
    "debug=smoke": "pipelines/test_examples.py::test_an_example_does_what_its_first_lines_say",
    "data=files": "pipelines/test_cache.py::test_first_run_computes_everything",
    "data.label_map": "data/test_labels.py::test_a_label_map_is_read_from_a_command_line_or_a_file",
    "pipeline=predict": "pipelines/test_predict.py::test_files_are_predicted_on_and_zenml_knows_it",
    "src/runs.py ls": "pipelines/test_runs.py::test_runs_are_listed_and_shown",
    "pipeline=search": "pipelines/test_search.py::test_plan_table_page_and_last_line",
    "task=regression": "tasks/test_every_task.py::test_plain_transformers_predicts_the_same_and_each_row_once",
    "task=image-classification": "tasks/test_every_task.py"
    "::test_plain_transformers_sees_the_same_in_an_image_and_each_row_once",
    "src/serve.py": "serve/test_server.py::test_many_clients_get_their_own_answers_until_the_end",
    "task=sft": "tasks/test_every_task.py::test_killed_and_resumed_nothing_differs",
    "model.name": "pipelines/test_end_to_end.py::test_labels_survive_into_the_model_and_the_pipeline_loads_it",
    "pipeline=evaluate": "pipelines/test_end_to_end.py::test_evaluate_pipeline_gives_the_same_scores",
    "launch.num_processes=2": "pipelines/test_end_to_end.py::test_two_processes_really_trained",
    "early_stopping.patience": "training/callbacks/test_early_stopping.py"
    "::test_a_run_stops_where_it_gets_no_better_also_after_a_resume",
    "ema.decay": "training/callbacks/test_ema.py::test_the_average_is_validated_selected_and_handed_on",
    "upload.url": "release/test_destination.py::test_to_the_hub",
    "checkpoint.store=s3": "pipelines/test_store_faults.py::test_the_last_checkpoint_could_not_be_saved",
    "pipeline=study": "pipelines/test_benchmark.py::test_table_page_and_artifacts",
    "compute=4xa10g": "aws/test_training.py::test_a_pipeline_trains_on_one_machine",
    "cache=false": "pipelines/test_cache.py::test_cache_false",
    "--cfg": "config/test_cli.py::test_cfg_prints_the_composed_configuration",
    "--help": "config/test_cli.py::test_help_shows_everything_quickly",
    "debug=": "pipelines/test_bad_input.py::test_debug_shows_the_traceback",
    "make doctor": "doctor/test_report.py::test_a_good_machine",
    "data.max_rows=null epochs=3": "",
    "data=sst2 model=bert-base": "",
}
"""By what is particular to a command: the test that runs it, or its like on small things; none where the Hub or too
much time would be needed. A longer one goes before a shorter one."""


def everyday() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Everyday commands")[2].partition("\n## ")[0]
    return re.findall(r"^\|[^|]*\| `([^`]*)`", text, flags=re.MULTILINE)


def test_the_everyday_commands_compose_and_are_run_by_tests(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader)
    assert len(everyday()) >= 15
    for command in everyday():
        if command.startswith("python src/run.py"):
            compose(command.removeprefix("python src/run.py").strip())
        particular = max((mark for mark in EVERYDAY if mark in command), key=len)
        assert particular or command == "python src/run.py", f"{command}: EVERYDAY names no test that runs it"
        file, _, test = EVERYDAY[particular].partition("::")
        assert not file or f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), EVERYDAY[particular]


@pytest.mark.parametrize(("file", "most"), [("README.md", 180), ("docs/architecture.md", 200), ("CONTRIBUTING.md", 60)])
def test_a_page_stays_short(file: str, most: int) -> None:
    assert len((ROOT / file).read_text(encoding="utf-8").splitlines()) <= most


def test_the_glossary_is_short() -> None:
    words = re.findall(r"^\| \*\*", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert 15 <= len(words) <= 25


def test_generated_pages_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skytune.config.help.registry", {})  # other tests register things of their own
    old = [file.name for file, text in module("tools/docs.py").pages().items() if file.read_text("utf-8") != text]
    assert old == [], "run `make docs`"


def test_the_readme_shows_every_room() -> None:
    tree = (ROOT / "README.md").read_text(encoding="utf-8").partition("src/skytune/\n")[2].partition("```")[0]
    rooms = {path.name for path in (ROOT / "src" / "skytune").iterdir() if (path / "__init__.py").exists()}
    assert rooms - set(re.findall(r"\b([a-z]+)/", tree)) == set()


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (test_links_lead_somewhere, "See [there](nowhere.md)."),
        (test_named_paths_exist, "See `src/skytune/nowhere.py`."),
        (test_named_paths_exist, "    python benchmarks/nowhere.py --quick"),
        (test_make_targets_exist, "Then `make nothing`."),
        (test_keys_and_presets_in_the_text_exist, "Set `batch.globl_size=8`."),
        (test_keys_and_presets_in_the_text_exist, "Take `model=no-such-one`."),
        (test_commands_compose, "    python src/run.py epoch=3"),
        (test_commands_compose, "| Fast | `python src/run.py data=nowhere` |"),
        (test_commands_compose, "```\npython src/run.py epochs=none\n```"),
        (test_commands_of_the_other_programs_are_read, "`python src/stack.py unregister aws`"),
        (test_commands_of_the_other_programs_are_read, "    python src/runs.py list"),
    ],
)
def test_a_fault_in_a_page_is_found(
    check: Any, text: str, tmp_path: Path, reader: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.md").write_text(f"# A page\n\n{text}\n")
    offered = {"page": tmp_path / "page.md", "reader": reader, "monkeypatch": monkeypatch}
    with pytest.raises((AssertionError, ConfigError)):
        check(**{name: offered[name] for name in inspect.signature(check).parameters})
